#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "collectives/world/interruption.h"
#include "collectives/world/mpi.h"

namespace annulus {

// What carries the messages of all channels of this process.
struct Carrier {
  explicit Carrier(std::size_t ranks) : interruption(ranks) {}

  Communicator communicator = Communicator::duplicate(MPI_COMM_WORLD);
  // Held during each call of MPI for a message; none of them blocks. Open MPI 4.1 loses receives if one is cancelled
  // while another thread matches a message with it, and a request may not be freed while another thread's call, which
  // makes progress for all, completes it.
  mutable std::mutex mutex;
  Interruption interruption;
  int next_context = 0;  // the smallest context that no world of this process has used
};

// Messages between some ranks of the job, apart from those of all other channels: it has a tag of its own on the one
// communicator that carries them all. In contrast to a communicator it is created without an exchange, so ranks that
// have lost others can have new ones. Messages between two ranks arrive in the order in which they were sent.
class Channel {
 public:
  // `ranks_in_job`: of the ranks 0, 1, ... of this channel. Throws Error if MPI's tags are too few for this context.
  Channel(std::shared_ptr<const Carrier> carrier, std::vector<int> ranks_in_job, int context);

  // The bytes must not be touched before the request is complete.
  void start_sending(std::span<const std::byte> bytes, int to, MPI_Request& request) const;
  void start_receiving(std::span<std::byte> bytes, int from, MPI_Request& request) const;

  bool test(MPI_Request& request, MPI_Status* status = MPI_STATUS_IGNORE) const;  // whether it is complete

  void give_up(std::span<MPI_Request> requests) const;  // cancels and frees those that are pending

  // Cancels receives, and waits for those whose messages are arriving, for up to a second, so that nothing is written
  // to their memory later.
  void withdraw(std::span<MPI_Request> receives) const;

  // Waits until the requests are complete. Throws Error if the carrier is interrupted meanwhile, because a rank was
  // lost; the receives are withdrawn then.
  void complete(std::span<MPI_Request> receives, std::span<MPI_Request> sends) const;

  void send(std::span<const std::byte> bytes, int to) const;
  void receive(std::span<std::byte> bytes, int from) const;

 private:
  std::shared_ptr<const Carrier> carrier_;
  std::vector<int> ranks_in_job_;
  int context_;
};

}  // namespace annulus
