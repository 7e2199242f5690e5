#include "collectives/world/channel.h"

#include <chrono>
#include <thread>
#include <utility>

#include "kernels/base/error.h"

namespace annulus {
namespace {

// A waiting rank yields its core to ranks that compute, and after some milliseconds it also stops polling in between:
// it may wait for another rank's evaluation.
constexpr int kPolls = 2000;
constexpr auto kPause = std::chrono::microseconds(50);

constexpr std::chrono::seconds kArrival(1);  // see withdraw()

}  // namespace

MpiCarrier::MpiCarrier(Communicator communicator)
    : Carrier(communicator.rank(), communicator.size()), communicator_(std::move(communicator)) {}

void MpiCarrier::start_sending(std::span<const std::byte> bytes, int to, int context, MPI_Request& request) const {
  const std::scoped_lock lock(mutex_);
  check(MPI_Isend(bytes.data(), mpi_count(bytes.size()), MPI_BYTE, to, context, communicator_.handle(), &request));
}

void MpiCarrier::start_receiving(std::span<std::byte> bytes, int from, int context, MPI_Request& request) const {
  const std::scoped_lock lock(mutex_);
  check(MPI_Irecv(bytes.data(), mpi_count(bytes.size()), MPI_BYTE, from, context, communicator_.handle(), &request));
}

bool MpiCarrier::test(MPI_Request& request, MPI_Status* status) const {
  const std::scoped_lock lock(mutex_);
  int done = 0;
  check(MPI_Test(&request, &done, status));
  return done != 0;
}

void MpiCarrier::give_up(std::span<MPI_Request> requests) const {
  const std::scoped_lock lock(mutex_);
  for (MPI_Request& request : requests)
    if (request != MPI_REQUEST_NULL) {
      MPI_Cancel(&request);
      MPI_Request_free(&request);
    }
}

void MpiCarrier::withdraw(std::span<MPI_Request> receives) const {
  {
    const std::scoped_lock lock(mutex_);
    for (MPI_Request& request : receives)
      if (request != MPI_REQUEST_NULL) MPI_Cancel(&request);
  }
  const auto over = [](MPI_Request& request) {  // also if MPI knows that the sender has failed
    const std::scoped_lock lock(mutex_);
    int done = 0;
    return MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done != 0;
  };
  const auto latest = std::chrono::steady_clock::now() + kArrival;
  for (MPI_Request& request : receives)
    while (!over(request) && std::chrono::steady_clock::now() < latest) std::this_thread::yield();
  give_up(receives);  // receives whose senders died while sending
}

int MpiCarrier::largest_context() const {
  int* largest = nullptr;
  int found = 0;
  check(MPI_Comm_get_attr(communicator_.handle(), MPI_TAG_UB, &largest, &found));
  return found ? *largest : 32767;  // the standard's minimum
}

Communicator MpiCarrier::communicator_of(std::span<const int> ranks, int context) const {
  return Communicator::of(communicator_.handle(), ranks, context);
}

Channel::Channel(std::shared_ptr<const Carrier> carrier, std::vector<int> ranks_in_job, int context)
    : carrier_(std::move(carrier)), ranks_in_job_(std::move(ranks_in_job)), context_(context) {
  if (context > carrier_->largest_context())
    fail("this MPI library has too few tags: channel {} exceeds {}", context, carrier_->largest_context());
}

void Channel::start_sending(std::span<const std::byte> bytes, int to, MPI_Request& request) const {
  carrier_->start_sending(bytes, ranks_in_job_.at(static_cast<std::size_t>(to)), context_, request);
}

void Channel::start_receiving(std::span<std::byte> bytes, int from, MPI_Request& request) const {
  carrier_->start_receiving(bytes, ranks_in_job_.at(static_cast<std::size_t>(from)), context_, request);
}

void Channel::complete(std::span<MPI_Request> receives, std::span<MPI_Request> sends) const {
  for (const std::span<MPI_Request> requests : {receives, sends})
    for (MPI_Request& request : requests)
      for (int polls = 0; !test(request); ++polls) {
        if (carrier_->interruption.interrupted()) {
          withdraw(receives);
          give_up(sends);
          fail("a rank was lost");
        }
        if (polls < kPolls)
          std::this_thread::yield();
        else
          std::this_thread::sleep_for(kPause);
      }
}

void Channel::send(std::span<const std::byte> bytes, int to) const {
  MPI_Request request = MPI_REQUEST_NULL;
  start_sending(bytes, to, request);
  complete({}, {&request, 1});
}

void Channel::receive(std::span<std::byte> bytes, int from) const {
  MPI_Request request = MPI_REQUEST_NULL;
  start_receiving(bytes, from, request);
  complete({&request, 1}, {});
}

}  // namespace annulus
