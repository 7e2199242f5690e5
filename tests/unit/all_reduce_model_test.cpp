#include "src/scaling/all_reduce_model.h"

#include <catch2/catch.hpp>
#include <deque>
#include <thread>

#include "collectives/host/shared_memory_all_reduce.h"
#include "collectives/ring/ring.h"
#include "tests/unit/error_text.h"
#include "tests/unit/loopback_link.h"

namespace annulus {

namespace {

constexpr LinkModel kEthernet{20e-6, 1.25e9};
constexpr LinkModel kMemory{1e-6, 10e9};
constexpr std::size_t kWhole = std::size_t{1} << 40;  // segments that chunks are never cut into

// Messages on the link below take time on this clock. A message carries the times of its departure and arrival.
class VirtualLink final : public RingLink {
 public:
  VirtualLink(std::unique_ptr<RingLink> link, std::unique_ptr<RingLink> times, const LinkModel& model, double& now)
      : link_(std::move(link)), times_(std::move(times)), model_(model), now_(now) {}

  void post(std::span<const std::byte> to_next, std::span<std::byte> landing) override {
    left_ = std::max(left_, now_) + static_cast<double>(to_next.size()) / model_.bytes_per_second;
    Message& message = messages_.emplace_back(Message{left_, left_ + model_.latency_seconds, 0});
    times_->post(std::as_bytes(std::span(&message.there, 1)), std::as_writable_bytes(std::span(&message.arrived, 1)));
    link_->post(to_next, landing);
  }
  std::span<const std::byte> collect() override {
    times_->collect();
    const Message& message = messages_[collected_++];
    now_ = std::max({now_, message.arrived, message.left});
    return link_->collect();
  }

 private:
  struct Message {
    double left, there;  // of the outgoing one
    double arrived;      // of the incoming one
  };
  std::unique_ptr<RingLink> link_, times_;
  LinkModel model_;
  double& now_;
  double left_ = 0;
  std::deque<Message> messages_;
  std::size_t collected_ = 0;
};

// The time of the real ring's last rank; the ranks are threads.
double seconds_of_real_ring(std::span<const LinkModel> models, std::size_t size, std::size_t bytes,
                            const RingOptions& options) {
  auto links = loopback_ring(size, LoopbackDelivery::into_landing),
       times = loopback_ring(size, LoopbackDelivery::into_landing);
  std::vector<double> now(size);
  std::vector<std::jthread> ranks;
  for (std::size_t rank = 0; rank < size; ++rank)
    ranks.emplace_back([&, rank] {
      std::vector<float> values(bytes / sizeof(float));
      Ring ring(std::make_unique<VirtualLink>(std::move(links[rank]), std::move(times[rank]),
                                              models[rank % models.size()], now[rank]),
                rank, size, std::make_shared<AllReduceContext>(0), options);
      ring.all_reduce(values);
    });
  ranks.clear();
  return std::ranges::max(now);
}

double closed_form(std::size_t ranks, std::size_t bytes, const LinkModel& link) {
  const auto n = static_cast<double>(ranks);
  return 2 * (n - 1) * link.latency_seconds + 2 * (n - 1) / n * static_cast<double>(bytes) / link.bytes_per_second;
}

}  // namespace

TEST_CASE("an unsegmented ring takes 2(N-1) latencies and sends 2(N-1)/N of the bytes") {
  const auto ranks = GENERATE(as<std::size_t>{}, 1, 2, 3, 4, 7, 64, 1024, 4096);
  const std::size_t bytes = ranks * 64 * 1000;
  const double seconds = ring_seconds({&kEthernet, 1}, ranks, bytes, {kWhole, 4}, WireType::fp32);
  CHECK(seconds == Approx(closed_form(ranks, bytes, kEthernet)).epsilon(1e-12));
}

TEST_CASE("16-bit messages halve the bytes but not the latency; additions cost time in the reduce-scatter") {
  const std::size_t ranks = 8, bytes = ranks * 64 * 1000;
  CHECK(ring_seconds({&kEthernet, 1}, ranks, bytes, {kWhole, 4}, WireType::bf16) ==
        Approx(closed_form(ranks, bytes / 2, kEthernet)).epsilon(1e-12));
  CHECK(ring_seconds({&kEthernet, 1}, ranks, bytes, {kWhole, 4}, WireType::fp32, 5e9) ==
        Approx(closed_form(ranks, bytes, kEthernet) + 7 * 64000 / 5e9).epsilon(1e-12));
}

TEST_CASE("segments hide latency and additions if the wire is busy") {
  const std::size_t ranks = 4, bytes = ranks * 64 * 1000;
  const RingOptions ten{.segment_bytes = 6400, .in_flight = 16};
  const LinkModel link{5e-6, 1e9};  // a segment takes 6.4 us, a chunk 64
  const double wire = 6 * 64e-6;
  CHECK(ring_seconds({&link, 1}, ranks, bytes, ten, WireType::fp32) == Approx(wire + 5e-6).epsilon(1e-12));
  CHECK(ring_seconds({&link, 1}, ranks, bytes, ten, WireType::fp32, 2e9) == Approx(wire + 5e-6).epsilon(1e-12));
  // One at a time has no overlap: all 60 pay the latency.
  const RingOptions one{.segment_bytes = 6400, .in_flight = 1};
  CHECK(ring_seconds({&link, 1}, ranks, bytes, one, WireType::fp32) == Approx(wire + 60 * 5e-6).epsilon(1e-12));
}

TEST_CASE("the model matches the real ring in virtual time") {
  const auto ranks = GENERATE(as<std::size_t>{}, 1, 2, 3, 4, 6);
  const auto segment_bytes = GENERATE(as<std::size_t>{}, 64, 640, kWhole);
  const auto in_flight = GENERATE(as<std::size_t>{}, 1, 3, 16);
  const std::vector<std::vector<LinkModel>> kinds{
      {kEthernet}, {kMemory, {20e-6, 0.5e9}}, {kMemory, kMemory, kEthernet}};
  for (const auto& links : kinds) {
    if (ranks % links.size() != 0) continue;
    CAPTURE(ranks, segment_bytes, in_flight, links.size());
    const RingOptions options{segment_bytes, in_flight};
    const std::size_t even = ranks * 64 * 30;
    CHECK(ring_seconds(links, ranks, even, options, WireType::fp32) ==
          Approx(seconds_of_real_ring(links, ranks, even, options)).epsilon(1e-12));
    // The model assumes that all chunks are as large as the largest, which is a line too much.
    const double real = seconds_of_real_ring(links, ranks, even + 64, options);
    const double line = 64 / links.back().bytes_per_second;
    const double model = ring_seconds(links, ranks, even + 64, options, WireType::fp32);
    CHECK(model >= real - 1e-12);
    CHECK(model <= real + static_cast<double>(RingPartition((even + 64) / 4, ranks, options).exchanges) * line);
  }
}

TEST_CASE("with uneven unsegmented chunks, the largest determines the time") {
  const auto lines = GENERATE(as<std::size_t>{}, 1, 3, 7, 50);
  for (const std::size_t ranks : {2, 3, 5})
    CHECK(ring_seconds({&kEthernet, 1}, ranks, 64 * lines, {kWhole, 4}, WireType::fp32) ==
          Approx(seconds_of_real_ring({&kEthernet, 1}, ranks, 64 * lines, {kWhole, 4})).epsilon(1e-12));
}

TEST_CASE("recursive doubling sends the whole array in every exchange") {
  const Cluster cluster{.network = kEthernet};
  const double exchange = 20e-6 + 4000 / 1.25e9;
  CHECK(doubling_seconds(cluster, 1, 4000) == 0);
  CHECK(doubling_seconds(cluster, 2, 4000) == Approx(exchange));
  CHECK(doubling_seconds(cluster, 64, 4000) == Approx(6 * exchange));
  CHECK(doubling_seconds(cluster, 7, 4000) == Approx(4 * exchange));
  const Cluster adds{.network = kEthernet, .wire = WireType::fp16, .add_bytes_per_second = 4e9};
  CHECK(doubling_seconds(adds, 7, 4000) == Approx(4 * (20e-6 + 2000 / 1.25e9) + 3 * 1e-6));
}

TEST_CASE("auto models the faster algorithm for each size, and the ring from 1 MiB") {
  const Cluster cluster{.network = kEthernet};
  const AllReduceModel best = model_all_reduce("auto", cluster, 64),
                       ring = model_all_reduce("message-ring", cluster, 64);
  const AllReduceModel doubling = model_all_reduce("doubling", cluster, 64);
  CHECK(best.seconds(4096) == doubling.seconds(4096));
  CHECK(best.seconds(4096) < ring.seconds(4096));
  CHECK(best.seconds(4 << 20) == ring.seconds(4 << 20));
  CHECK(best.name == "ring over messages of fp32, recursive doubling up to 512 KiB");
  CHECK(model_all_reduce("auto", cluster, 4096).name ==
        "ring over messages of fp32, recursive doubling up to 1024 KiB");
  CHECK(model_all_reduce("auto", cluster, 1).seconds(1 << 20) == 0);
}

TEST_CASE("with several ranks per node, the rings between nodes share the wire") {
  const Cluster cluster{.network = kEthernet, .ranks_per_node = 4, .node = kMemory};
  const std::size_t bytes = 16 << 20, chunk = bytes / 4;
  const LinkModel quarter{kEthernet.latency_seconds, kEthernet.bytes_per_second / 4};
  const double node = 2 * (1e-6 + 3 * static_cast<double>(chunk) / 10e9);
  const AllReduceModel one = model_all_reduce("auto", cluster, 4), four = model_all_reduce("auto", cluster, 16);
  CHECK(one.seconds(bytes) == Approx(node));
  CHECK(four.seconds(bytes) ==
        Approx(node + ring_seconds({&quarter, 1}, 4, chunk, message_ring_options(false), WireType::fp32)));
  // Small arrays are read once and sent whole, on one node as long as that is faster.
  const auto whole = [](std::size_t size) { return 1e-6 + 3.0 * static_cast<double>(size) / 10e9; };
  CHECK(one.seconds(4096) == Approx(whole(4096)));
  CHECK(one.seconds(8192) == Approx(2 * whole(8192 / 4)));
  CHECK(whole(8192) > 2 * whole(8192 / 4));
  const double small = whole(SharedMemoryAllReduce::kSmallBytes);
  CHECK(four.seconds(SharedMemoryAllReduce::kSmallBytes) ==
        Approx(small + doubling_seconds({.network = quarter}, 4, SharedMemoryAllReduce::kSmallBytes)));
}

TEST_CASE("algorithms without a model are refused") {
  const Cluster cluster{.network = kEthernet, .ranks_per_node = 4, .node = kMemory};
  CHECK_THAT(test::error_of([&] { model_all_reduce("auto", cluster, 6); }),
             Catch::Contains("6 ranks do not fill nodes of 4"));
  CHECK_THAT(test::error_of([&] { model_all_reduce("doubling", cluster, 8); }), Catch::Contains("doubling"));
  CHECK_THAT(test::error_of([&] { model_all_reduce("mpi", cluster, 8); }),
             Catch::Contains("--all-reduce mpi cannot be predicted"));
}

}  // namespace annulus
