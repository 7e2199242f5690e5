#pragma once

#include <cstddef>
#include <span>

#include "collectives/world/interruption.h"
#include "collectives/world/mpi.h"

namespace annulus {

// Carries the messages between a job's ranks. A message is received with the context that it was sent with, and
// messages with the same context arrive in the order in which they were sent.
class Carrier {
 public:
  Carrier(int rank, int size) : interruption(static_cast<std::size_t>(size)), rank_(rank), size_(size) {}
  virtual ~Carrier() = default;

  int rank() const { return rank_; }
  int size() const { return size_; }

  // The bytes must not be touched before the request is complete.
  virtual void start_sending(std::span<const std::byte> bytes, int to, int context, MPI_Request& request) const = 0;
  virtual void start_receiving(std::span<std::byte> bytes, int from, int context, MPI_Request& request) const = 0;
  virtual bool test(MPI_Request& request, MPI_Status* status) const = 0;  // whether it is complete

  virtual void give_up(std::span<MPI_Request> requests) const = 0;  // cancels and frees the pending ones
  // Cancels receives, and waits up to a second for messages that are arriving, so that nothing is written to the
  // receives' memory later.
  virtual void withdraw(std::span<MPI_Request> receives) const = 0;

  virtual int largest_context() const = 0;
  // For MPI's own collectives. Collective over the ranks.
  virtual Communicator communicator_of(std::span<const int> ranks, int context) const = 0;

  Interruption interruption;
  int next_context = 0;  // the smallest context that no world in this process has used

 private:
  const int rank_, size_;
};

}  // namespace annulus
