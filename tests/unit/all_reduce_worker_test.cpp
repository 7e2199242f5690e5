#include "collectives/all_reduce_worker.h"

#include <catch2/catch.hpp>
#include <thread>

#include "kernels/base/error.h"

namespace annulus {

namespace {

// Adds one to every element, as if the other ranks had sent ones; refuses arrays that begin with a negative number,
// and never completes those that begin with 1000.
class AddOne final : public AllReduceAlgorithm {
 public:
  explicit AddOne(std::shared_ptr<AllReduceContext> context) : AllReduceAlgorithm({"adds one"}, std::move(context)) {}

  void run(std::span<float> values, const Collective&) override {
    if (values[0] < 0) fail("broken wire");
    for (int polls = 0; values[0] == 1000; ++polls) context()->backoff.pause(polls);
    for (float& value : values) value += 1;
    bytes_ += values.size_bytes();
  }
  std::uint64_t bytes_sent() const override { return bytes_; }

 private:
  std::uint64_t bytes_ = 0;
};

std::unique_ptr<AllReduce> make_worker() {
  auto context = std::make_shared<AllReduceContext>(100);
  return std::make_unique<AllReduceWorker>(std::make_unique<AddOne>(context), "adds one", "tested");
}

}  // namespace

TEST_CASE("arrays are all-reduced in order, and waiting for one waits for all before it") {
  const std::size_t size = GENERATE(100, 20'000);  // done by the waiting thread; and enough to wake the worker's
  const auto worker = make_worker();
  const std::jthread watchdog([&worker](std::stop_token stop) {  // may be read at any time
    while (!stop.stop_requested()) {
      worker->progress().snapshot();
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  });
  std::vector<std::vector<float>> arrays(20, std::vector<float>(size, 7));
  for (int step = 0; step < 20; ++step) {
    AllReduce::Ticket last = 0;
    for (auto& array : arrays) {
      const AllReduce::Ticket ticket = worker->enqueue(view_of(array));
      CHECK(ticket > last);
      last = ticket;
    }
    worker->wait(last);
    CHECK(arrays == std::vector(20, std::vector<float>(size, static_cast<float>(8 + step))));
  }
  CHECK(worker->progress().snapshot().bytes_sent == 20 * 20 * size * sizeof(float));
}

TEST_CASE("an error in the worker is thrown by wait() and every later call") {
  const auto worker = make_worker();
  const std::size_t size = GENERATE(10, 20'000);
  std::vector<float> good(size, 1), bad(size, -1);
  worker->wait(worker->enqueue(view_of(good)));
  const AllReduce::Ticket ticket = worker->enqueue(view_of(bad));
  CHECK_THROWS_WITH(worker->wait(ticket), "broken wire");
  CHECK_THROWS_WITH(worker->wait(ticket), "broken wire");
  CHECK_THROWS_WITH(worker->enqueue(view_of(good)), "broken wire");
}

TEST_CASE("all-reduces are recorded as spans, in order") {
  const auto worker = make_worker();
  TraceLane lane(10);
  worker->record_to(&lane);
  std::vector<float> values(GENERATE(10, 20'000), 1);
  for (int step = 5; step < 7; ++step) {
    lane.record(true, step);
    worker->enqueue(view_of(values));
    worker->wait(worker->enqueue(view_of(values), {.next = AllReduce::Next::wait, .bucket = 1}));
  }
  lane.record(false);
  worker->wait(worker->enqueue(view_of(values)));
  REQUIRE(lane.spans().size() == 4);
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(lane.spans()[i].name == "all-reduce of bucket");
    CHECK(lane.spans()[i].number == 1 + static_cast<int>(i % 2));
    CHECK(lane.spans()[i].step == 5 + static_cast<int>(i / 2));
  }
}

TEST_CASE("a large all-reduce begins without wait(), even after a small one that is waited for") {
  class Slow final : public AllReduceAlgorithm {
   public:
    explicit Slow(std::shared_ptr<AllReduceContext> context) : AllReduceAlgorithm({"slow"}, std::move(context)) {}

    void run(std::span<float>, const Collective&) override {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    std::uint64_t bytes_sent() const override { return 0; }
  };
  const auto context = std::make_shared<AllReduceContext>(0);
  AllReduceWorker worker(std::make_unique<Slow>(context), "slow", "tested");
  std::vector<float> small(10), large(1 << 16);
  const auto first = worker.enqueue(view_of(small));
  worker.enqueue(view_of(large), {.bucket = 1});  // the thread wakes up while the small one is being reduced here
  worker.wait(first);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  while (worker.progress().snapshot().ended < 2 && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  CHECK(worker.progress().snapshot().ended == 2);
}

TEST_CASE("destroying the worker abandons all-reduces that never complete") {
  std::vector<float> hopeless(1 << 16, 1000), never_begun(10, 1);  // the worker reads it until it is destroyed
  const auto worker = make_worker();
  worker->enqueue(view_of(hopeless));  // large enough for the thread to begin it
  worker->enqueue(view_of(never_begun));
}

}  // namespace annulus
