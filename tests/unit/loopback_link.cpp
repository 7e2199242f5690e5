#include "tests/unit/loopback_link.h"

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>

#include "kernels/base/error.h"

namespace annulus {

namespace {

// From one rank to the next.
class Cable {
 public:
  void offer(std::span<const std::byte> bytes) {
    const std::scoped_lock lock(mutex_);
    if (!receiver_there_) fail_gone("next");
    offered_.push_back(bytes);
    changed_.notify_all();
  }

  template <class Take>
  void take(Take&& take) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !offered_.empty() || !sender_there_; });
    if (offered_.empty()) fail_gone("previous");
    take(offered_.front());
    offered_.pop_front();
    ++taken_;
    changed_.notify_all();
  }

  void wait_until_taken(std::uint64_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return taken_ >= count || !receiver_there_; });
    if (taken_ < count) fail_gone("next");
  }

  void sender_leaves() {
    const std::scoped_lock lock(mutex_);
    sender_there_ = false;
    offered_.clear();  // the memory goes with the sender
    changed_.notify_all();
  }

  void receiver_leaves() {
    const std::scoped_lock lock(mutex_);
    receiver_there_ = false;
    changed_.notify_all();
  }

 private:
  [[noreturn]] static void fail_gone(const char* neighbour) {
    fail("the {} rank of the ring has left; see its own error", neighbour);
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::span<const std::byte>> offered_;
  std::uint64_t taken_ = 0;
  bool sender_there_ = true;
  bool receiver_there_ = true;
};

class LoopbackLink final : public RingLink {
 public:
  LoopbackLink(std::shared_ptr<Cable> to_next, std::shared_ptr<Cable> from_previous, LoopbackDelivery delivery)
      : to_next_(std::move(to_next)), from_previous_(std::move(from_previous)), delivery_(delivery) {}

  ~LoopbackLink() override {
    to_next_->sender_leaves();
    from_previous_->receiver_leaves();
  }

  void post(std::span<const std::byte> to_next, std::span<std::byte> landing) override {
    to_next_->offer(to_next);
    landings_.push_back(landing);
  }

  std::span<const std::byte> collect() override {
    std::span<std::byte> landing = landings_.front();
    landings_.pop_front();
    if (delivery_ == LoopbackDelivery::into_memory_of_the_link) {
      memory_.resize(landing.size());
      landing = memory_;
    }
    from_previous_->take([&](std::span<const std::byte> bytes) {
      if (bytes.size() != landing.size())
        fail("{} bytes arrived where {} were expected: the ranks add arrays of different sizes", bytes.size(),
             landing.size());
      std::ranges::copy(bytes, landing.begin());
    });
    to_next_->wait_until_taken(++collected_);
    return landing;
  }

 private:
  std::shared_ptr<Cable> to_next_, from_previous_;
  LoopbackDelivery delivery_;
  std::deque<std::span<std::byte>> landings_;
  std::vector<std::byte> memory_;
  std::uint64_t collected_ = 0;
};

}  // namespace

std::vector<std::unique_ptr<RingLink>> loopback_ring(std::size_t size, LoopbackDelivery delivery) {
  std::vector<std::shared_ptr<Cable>> cable_from(size);
  for (auto& cable : cable_from) cable = std::make_shared<Cable>();
  std::vector<std::unique_ptr<RingLink>> links;
  for (std::size_t rank = 0; rank < size; ++rank)
    links.push_back(std::make_unique<LoopbackLink>(cable_from[rank], cable_from[(rank + size - 1) % size], delivery));
  return links;
}

}  // namespace annulus
