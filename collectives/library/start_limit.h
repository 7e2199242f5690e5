#pragma once

#include <mpi.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "collectives/world/world.h"
#include "kernels/base/error.h"

namespace annulus {

// Not all ranks completed a group's start within the timeout.
class StartTimeout : public Error {
 public:
  using Error::Error;
};

// Waits until all ranks call this. Throws StartTimeout.
void expect_all_ranks(MPI_Comm ranks, double timeout_seconds);

// Interrupts a world if this object exists for longer than the timeout, so that a rank's start does not wait for ever
// for other ranks.
class StartLimit {
 public:
  StartLimit(const World& world, double timeout_seconds);
  ~StartLimit();
  StartLimit(const StartLimit&) = delete;
  StartLimit& operator=(const StartLimit&) = delete;

  void expect_not_expired() const;  // throws StartTimeout

 private:
  const double seconds_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::atomic<bool> expired_ = false;
  std::jthread thread_;  // last, because it uses all members above
};

}  // namespace annulus
