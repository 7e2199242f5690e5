#include "collectives/host/message_parameter_server.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace annulus {
namespace {

std::size_t size_of(const std::vector<Range>& ranges) {
  std::size_t size = 0;
  for (const Range& range : ranges) size += range.size();
  return size;
}

// Copies array ranges to `packed`, without gaps.
void pack(std::span<const float> array, const std::vector<Range>& ranges, float* packed) {
  for (const Range& range : ranges) packed = std::copy_n(array.data() + range.begin, range.size(), packed);
}

void unpack(const float* packed, const std::vector<Range>& ranges, std::span<float> array) {
  for (const Range& range : ranges) {
    std::copy_n(packed, range.size(), array.data() + range.begin);
    packed += range.size();
  }
}

std::span<float> slice(const Buffer& packed, const Range& range) {
  return floats(packed.view()).subspan(range.begin, range.size());
}

}  // namespace

MessageParameterServer::MessageParameterServer(const World& world, const std::vector<Range>& own, std::size_t count,
                                               std::size_t pending)
    : ParameterServer(world, own),
      gradients_(world.channel()),
      requests_(world.channel()),
      replies_(world.channel()),
      contribution_(allocate_host(count * sizeof(float))),
      pulled_(allocate_host(count * sizeof(float))),
      workers_(ranks()),
      arrived_(allocate_host(count * sizeof(float))),
      weights_(allocate_host(size_of(own) * sizeof(float))) {
  std::size_t begin = 0;
  for (std::size_t rank = 0; rank < ranks(); ++rank) {
    const std::size_t size = size_of(owned(rank));
    owners_.push_back({.packed = {begin, begin + size}});
    begin += size;
  }
  while (sent_.size() < pending)
    sent_.push_back({allocate_host(count * sizeof(float)), std::vector(ranks(), MPI_REQUEST_NULL)});
  if (size_of(own) == 0) return;
  for (std::size_t rank = 0; rank < ranks(); ++rank) {
    for (Buffer* buffer : {&workers_[rank].gradients, &workers_[rank].weights})
      *buffer = allocate_host(size_of(own) * sizeof(float));
    receive_gradients(rank);
    receive_request(rank);
  }
}

MessageParameterServer::~MessageParameterServer() {
  withdraw();
  for (Worker& worker : workers_) {
    replies_.give_up({&worker.sent_step, 1});
    replies_.give_up({&worker.sent_weights, 1});
  }
  for (Sent& contribution : sent_) gradients_.give_up(contribution.requests);
  for (Owner& owner : owners_) requests_.give_up({&owner.sent_request, 1});
}

// Withdraws all together, because a message that a dead rank has begun to send is awaited for a while.
void MessageParameterServer::withdraw() {
  std::vector<MPI_Request> receives;
  const auto add = [&](MPI_Request& request) { receives.push_back(std::exchange(request, MPI_REQUEST_NULL)); };
  for (Worker& worker : workers_) {
    add(worker.gradients_arrive);
    add(worker.request_arrives);
  }
  for (Owner& owner : owners_) {
    add(owner.step_arrives);
    add(owner.weights_arrive);
  }
  gradients_.withdraw(receives);
}

void MessageParameterServer::await_steps(std::uint64_t step) {
  for (Owner& owner : owners_) requests_.complete({}, {&owner.sent_request, 1});
  needed_ = step;
  for (const std::size_t rank : servers()) {
    Owner& owner = owners_[rank];
    const int from = static_cast<int>(rank);
    replies_.start_receiving(std::as_writable_bytes(std::span(&owner.step, 1)), from, owner.step_arrives);
    replies_.start_receiving(std::as_writable_bytes(slice(pulled_, owner.packed)), from, owner.weights_arrive);
    requests_.start_sending(std::as_bytes(std::span(&needed_, 1)), from, owner.sent_request);
  }
  for (Owner& owner : owners_) replies_.complete({&owner.step_arrives, 1}, {});
}

std::uint64_t MessageParameterServer::pull(std::span<float> weights) {
  std::uint64_t oldest = std::numeric_limits<std::uint64_t>::max();
  for (const std::size_t rank : servers()) {
    Owner& owner = owners_[rank];
    replies_.complete({&owner.weights_arrive, 1}, {});
    unpack(slice(pulled_, owner.packed).data(), owned(rank), weights);
    oldest = std::min(oldest, owner.step);
  }
  return oldest;
}

void MessageParameterServer::contribute() {
  Sent& contribution = sent_[contributed_++ % sent_.size()];
  gradients_.complete({}, contribution.requests);
  for (const std::size_t rank : servers()) {
    const std::span<float> packed = slice(contribution.packed, owners_[rank].packed);
    pack(this->contribution(), owned(rank), packed.data());
    gradients_.start_sending(std::as_bytes(packed), static_cast<int>(rank), contribution.requests[rank]);
  }
}

void MessageParameterServer::receive_gradients(std::size_t rank) {
  Worker& worker = workers_[rank];
  gradients_.start_receiving(std::as_writable_bytes(floats(worker.gradients.view())), static_cast<int>(rank),
                             worker.gradients_arrive);
}

void MessageParameterServer::receive_request(std::size_t rank) {
  Worker& worker = workers_[rank];
  requests_.start_receiving(std::as_writable_bytes(std::span(&worker.requested, 1)), static_cast<int>(rank),
                            worker.request_arrives);
}

std::span<const float> MessageParameterServer::await_contribution(std::size_t rank) {
  Worker& worker = workers_[rank];
  bool arrived = false;
  reply_until([&] { return (arrived = gradients_.test(worker.gradients_arrive)) || lost(rank); });
  if (!arrived) return {};
  unpack(floats(worker.gradients.view()).data(), own(), floats(arrived_.view()));
  receive_gradients(rank);
  return floats(arrived_.view());
}

void MessageParameterServer::publish(std::uint64_t step, std::span<const float> weights) {
  pack(weights, own(), floats(weights_.view()).data());
  published_ = step + 1;
  reply_to_workers();
}

void MessageParameterServer::serve(std::uint64_t step) {
  reply_until([&] {
    for (std::size_t rank = 0; rank < ranks(); ++rank)
      if (Worker& worker = workers_[rank]; !lost(rank) && !has_step(worker, step)) return false;
    return true;
  });
}

bool MessageParameterServer::has_step(Worker& worker, std::uint64_t step) const {
  return worker.replied >= step && replies_.test(worker.sent_step) && replies_.test(worker.sent_weights);
}

template <class Done>
void MessageParameterServer::reply_until(const Done& done) {
  for (int polls = 0; !done(); ++polls) {
    if (reply_to_workers()) polls = 0;
    owner_backoff_.pause(polls);
  }
}

// Replies to the requests that can be met. Returns whether there were any.
bool MessageParameterServer::reply_to_workers() {
  bool replied = false;
  for (std::size_t rank = 0; rank < ranks(); ++rank) {
    Worker& worker = workers_[rank];
    if (!worker.waits) worker.waits = requests_.test(worker.request_arrives);
    if (!worker.waits || published_ <= worker.requested) continue;
    reply(rank);
    replied = true;
  }
  return replied;
}

void MessageParameterServer::reply(std::size_t rank) {
  Worker& worker = workers_[rank];
  const int to = static_cast<int>(rank);
  for (MPI_Request* sent : {&worker.sent_step, &worker.sent_weights}) replies_.complete({}, {sent, 1});
  worker.replied = published_ - 1;
  std::ranges::copy(floats(weights_.view()), floats(worker.weights.view()).begin());
  replies_.start_sending(std::as_bytes(std::span(&worker.replied, 1)), to, worker.sent_step);
  replies_.start_sending(std::as_bytes(floats(worker.weights.view())), to, worker.sent_weights);
  worker.waits = false;
  receive_request(rank);
}

}  // namespace annulus
