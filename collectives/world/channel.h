#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "collectives/world/carrier.h"
#include "collectives/world/mpi.h"

namespace annulus {

// Carries the messages for all channels in this process, by MPI.
class MpiCarrier final : public Carrier {
 public:
  // Collective over `ranks`, which it duplicates.
  explicit MpiCarrier(MPI_Comm ranks) : MpiCarrier(Communicator::duplicate(ranks)) {}

  const Communicator& communicator() const { return communicator_; }

  void start_sending(std::span<const std::byte> bytes, int to, int context, MPI_Request& request) const override;
  void start_receiving(std::span<std::byte> bytes, int from, int context, MPI_Request& request) const override;
  bool test(MPI_Request& request, MPI_Status* status) const override;
  void give_up(std::span<MPI_Request> requests) const override;
  void withdraw(std::span<MPI_Request> receives) const override;
  int largest_context() const override;
  Communicator communicator_of(std::span<const int> ranks, int context) const override;

 private:
  explicit MpiCarrier(Communicator communicator);

  Communicator communicator_;
  // Held during each MPI call for a message, by all carriers in this process; none of these calls blocks. Open MPI 4.1
  // loses receives if a receive is cancelled while another thread matches it with a message, and a request may not be
  // freed while another thread's call, which makes progress for all, completes it.
  inline static std::mutex mutex_;
};

// Messages between some of a carrier's ranks, separate from all other channels: each channel has its own tag on the one
// communicator that carries all. Unlike a communicator it is created without an exchange, so the survivors of a loss
// can create new channels. Messages between two ranks arrive in the order in which they were sent.
class Channel {
 public:
  // `ranks_in_job`: for ranks 0, 1, ... in this channel. Throws Error if the carrier has too few contexts.
  Channel(std::shared_ptr<const Carrier> carrier, std::vector<int> ranks_in_job, int context);

  // The bytes must not be touched before the request is complete.
  void start_sending(std::span<const std::byte> bytes, int to, MPI_Request& request) const;
  void start_receiving(std::span<std::byte> bytes, int from, MPI_Request& request) const;

  bool test(MPI_Request& request, MPI_Status* status = MPI_STATUS_IGNORE) const {
    return carrier_->test(request, status);
  }
  void give_up(std::span<MPI_Request> requests) const { carrier_->give_up(requests); }
  void withdraw(std::span<MPI_Request> receives) const { carrier_->withdraw(receives); }

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
