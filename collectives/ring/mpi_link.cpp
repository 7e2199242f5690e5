#include "collectives/ring/mpi_link.h"

#include "kernels/base/error.h"

namespace annulus {

MpiLink::MpiLink(const World& world, std::size_t in_flight, std::shared_ptr<AllReduceContext> context)
    : channel_(world.channel()),
      next_((world.rank() + 1) % world.size()),
      previous_((world.rank() + world.size() - 1) % world.size()),
      next_in_job_(world.rank_in_job(next_)),
      previous_in_job_(world.rank_in_job(previous_)),
      context_(std::move(context)),
      exchanges_(in_flight) {}

MpiLink::~MpiLink() {
  for (Exchange& exchange : exchanges_)
    channel_.give_up(exchange.requests);  // requests that were posted but not collected
}

void MpiLink::post(std::span<const std::byte> to_next, std::span<std::byte> landing) {
  if (posted_ - collected_ == exchanges_.size())
    fail("more than {} exchanges are in flight on one link", exchanges_.size());
  Exchange& exchange = exchanges_[posted_++ % exchanges_.size()];
  exchange.landing = landing;
  // Receives first: a message whose receive is already posted arrives without a copy.
  channel_.start_receiving(landing, previous_, exchange.requests[0]);
  channel_.start_sending(to_next, next_, exchange.requests[1]);
}

std::span<const std::byte> MpiLink::collect() {
  Exchange& exchange = exchanges_[collected_++ % exchanges_.size()];
  const MPI_Status arrived = wait(exchange.requests[0], previous_in_job_);
  int received = 0;
  check(MPI_Get_count(&arrived, MPI_BYTE, &received));
  if (static_cast<std::size_t>(received) != exchange.landing.size())
    fail("{} bytes arrived from rank {} instead of {}: the ranks all-reduce arrays of different sizes", received,
         previous_in_job_, exchange.landing.size());
  wait(exchange.requests[1], next_in_job_);
  return exchange.landing;
}

MPI_Status MpiLink::wait(MPI_Request& request, int peer) {
  context_->progress.await(peer);
  MPI_Status status;
  for (int polls = 0; !channel_.test(request, &status); ++polls) context_->backoff.pause(polls);
  return status;
}

}  // namespace annulus
