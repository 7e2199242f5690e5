#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "collectives/all_reduce_worker.h"
#include "collectives/gpu/make_gpu_all_reduce.h"
#include "collectives/host/host_all_reduce.h"
#include "kernels/base/error.h"

namespace annulus {

namespace {

constexpr std::array<std::string_view, 9> kNames{"auto",     "ring", "message-ring", "direct", "hierarchical",
                                                 "doubling", "mpi",  "nccl",         "none"};

class NoAllReduce final : public AllReduce {
 public:
  // `sums`: whether this is nevertheless the sum, as it is in a world of one.
  NoAllReduce(Device& device, std::string description, bool sums)
      : device_(device), description_(std::move(description)), sums_(sums) {}

  std::string description() const override { return description_; }
  std::string order() const override { return "none"; }
  bool sums() const override { return sums_; }
  DeviceView allocate(std::size_t bytes) override { return memory_.emplace_back(device_.allocate(bytes)).view(); }
  Ticket enqueue(DeviceView, Next, std::size_t) override {
    final_[++last_ % kRemembered] = device_.mark();
    return last_;
  }
  void wait(Ticket ticket) override { device_.seconds(final_[ticket % kRemembered]); }
  void join(Ticket) override {}
  std::uint64_t bytes_sent() const override { return 0; }
  const AllReduceProgress& activity() const override { return activity_; }

 private:
  static constexpr std::size_t kRemembered = 256;  // more than the buckets that anybody still waits for

  Device& device_;
  std::string description_;
  bool sums_;
  std::array<Mark, kRemembered> final_;  // when what was enqueued was computed
  AllReduceProgress activity_;
  std::vector<Buffer> memory_;
  Ticket last_ = 0;
};

// An algorithm of the host's, for arrays in its memory.
std::unique_ptr<AllReduce> make_host_all_reduce(const std::string& algorithm, const World& world, WireType wire,
                                                std::optional<std::size_t> crossover) {
  if (algorithm == "nccl") fail("--all-reduce nccl adds in the memory of GPUs, and this device is none: use auto");
  HostAllReduce sum = make_host_all_reduce(algorithm, world, wire, crossover);
  const std::size_t worth_waking = world.one_node() ? AllReduceWorker::kQuick : 0;
  return std::make_unique<AllReduceWorker>(std::move(sum.algorithm), std::move(sum.backoff), std::move(sum.name),
                                           std::move(sum.why), worth_waking);
}

}  // namespace

std::unique_ptr<AllReduce> make_all_reduce(const std::string& algorithm, const World& world, Device& device,
                                           WireType wire, std::optional<std::size_t> crossover) {
  if (std::ranges::find(kNames, algorithm) == kNames.end())
    fail("there is no all-reduce called '{}'; choose one of: {}", algorithm, fmt::join(kNames, ", "));
  if (world.size() == 1) return std::make_unique<NoAllReduce>(device, "none: a world of one has nothing to add", true);
  if (algorithm == "none")
    return std::make_unique<NoAllReduce>(device, "none: gradients are not summed (asked for by --all-reduce none)",
                                         false);
  return device.shares_host_memory() ? make_host_all_reduce(algorithm, world, wire, crossover)
                                     : make_gpu_all_reduce(algorithm, world, device, wire, crossover);
}

std::string unused_wire(const AllReduce& all_reduce, WireType wire) {
  if (wire == all_reduce.wire()) return "";
  return fmt::format("--wire {} has no effect, because this all-reduce sends no such messages: {}", to_string(wire),
                     all_reduce.description());
}

}  // namespace annulus
