#include "collectives/host/shared_memory_parameter_server.h"

#include <atomic>
#include <cstring>
#include <new>
#include <optional>

namespace annulus {
namespace {

constexpr std::size_t kCopies = 2;  // of the published weights

std::span<float> allocate_floats(SharedMemory& memory, std::size_t count) {
  return {reinterpret_cast<float*>(memory.allocate(count * sizeof(float)).data()), count};
}

// Returns every rank's counter.
std::vector<SharedCounter*> allocate_counters(SharedMemory& memory) {
  const auto own = memory.allocate(sizeof(SharedCounter));
  new (own.data()) SharedCounter;
  std::vector<SharedCounter*> counters;
  for (std::byte* address : memory.everywhere(own)) counters.push_back(reinterpret_cast<SharedCounter*>(address));
  return counters;
}

void copy_ranges(std::span<const float> from, std::span<float> to, const std::vector<Range>& ranges) {
  for (const Range& range : ranges)
    std::memcpy(to.data() + range.begin, from.data() + range.begin, range.size() * sizeof(float));
}

std::uint32_t narrow(std::uint64_t number) {
  return static_cast<std::uint32_t>(number);  // counters may wrap around
}

}  // namespace

SharedMemoryParameterServer::SharedMemoryParameterServer(const World& world, const std::vector<Range>& own,
                                                         std::size_t count, std::size_t pending)
    : ParameterServer(world, own), memory_(world.node()), count_(count) {
  const auto published = allocate_counters(memory_), contributed = allocate_counters(memory_);
  for (std::size_t rank = 0; rank < published.size(); ++rank) peers_.push_back({published[rank], contributed[rank]});
  while (contributions_.size() < pending) contributions_.push_back(allocate_floats(memory_, count));
  while (published_.size() < kCopies) published_.push_back(allocate_floats(memory_, count));
  world.barrier();  // all counters are initialized
}

// Returns the array on another rank that corresponds to this rank's `own`.
std::span<float> SharedMemoryParameterServer::array(std::size_t rank, std::span<const float> own) const {
  const auto place = memory_.find(std::as_bytes(own));
  return {reinterpret_cast<float*>(memory_.at(static_cast<int>(rank), *place)), count_};
}

void SharedMemoryParameterServer::await_steps(std::uint64_t step) {
  for (const std::size_t rank : servers()) peers_[rank].published->await(narrow(step + 1), worker_backoff_);
}

// The weights two steps later overwrite the weights that are read here. If that may have begun meanwhile, they are read
// again.
std::uint64_t SharedMemoryParameterServer::pull(std::span<float> weights) {
  std::optional<std::uint32_t> oldest;
  for (const std::size_t rank : servers()) {
    const SharedCounter& published = *peers_[rank].published;
    std::uint32_t before = published.value(), after = before;
    do {
      before = after;
      copy_ranges(array(rank, published_[(before - 1) % kCopies]), weights, owned(rank));
      std::atomic_thread_fence(std::memory_order_acquire);
      after = published.value();
    } while (after != before);
    if (!oldest || static_cast<std::int32_t>(before - *oldest) < 0) oldest = before;
  }
  return *oldest - 1;
}

void SharedMemoryParameterServer::contribute() {
  peers_[rank()].contributed->raise(narrow(++contributed_));
}

std::span<const float> SharedMemoryParameterServer::await_contribution(std::size_t rank) {
  Peer& worker = peers_[rank];
  const std::span<float> own = contributions_[worker.used % contributions_.size()];
  if (!worker.contributed->await(narrow(worker.used + 1), owner_backoff_, &lost(rank))) return {};
  ++worker.used;
  return array(rank, own);
}

void SharedMemoryParameterServer::publish(std::uint64_t step, std::span<const float> weights) {
  copy_ranges(weights, published_[step % kCopies], own());
  peers_[rank()].published->raise(narrow(step + 1));
}

}  // namespace annulus
