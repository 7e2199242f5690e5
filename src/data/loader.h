#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <stop_token>
#include <thread>
#include <vector>

#include "src/data/dataset.h"
#include "src/data/sampler.h"

namespace annulus {

// One rank's share of a step.
struct Batch {
  StepPlan step;
  std::vector<std::uint8_t> images;  // size() x height x width x channels
  std::vector<std::int32_t> labels;

  std::size_t size() const { return labels.size(); }
};

// Reads this rank's share of every step of the training run ahead of time, on a thread of its own, in the order of
// EpochOrder(seed). Memory is bounded by `kDepth` batches, which are reused.
class Loader {
 public:
  Loader(const Dataset& dataset, std::uint64_t seed, std::size_t global_batch, int rank, int ranks, Cursor start);
  ~Loader();

  // The next step's share, valid until the next call. Throws what the reading thread met.
  const Batch& next();

 private:
  static constexpr std::size_t kDepth = 4;

  void read_ahead(std::stop_token stop);
  void fill(Batch& batch, const StepPlan& step) const;

  const Dataset& dataset_;
  const std::uint64_t seed_;
  const std::size_t global_batch_;
  const int rank_, ranks_;
  Cursor cursor_;  // where the reading thread is

  // A ring: batch number n lies in slot n % kDepth. Those in [taken_, filled_) are ready, taken_ - 1 is the caller's.
  std::array<Batch, kDepth> ring_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable_any changed_;
  std::uint64_t filled_ = 0;
  std::uint64_t taken_ = 0;
  std::exception_ptr failure_;

  std::jthread thread_;  // last: it stops before what it uses goes away
};

}  // namespace annulus
