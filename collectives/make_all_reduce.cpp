#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "collectives/all_reduce_worker.h"
#include "collectives/gpu/make_gpu_all_reduce.h"
#include "collectives/host/host_all_reduce.h"
#include "kernels/base/error.h"

namespace annulus {

namespace {

class NoAllReduce final : public AllReduce {
 public:
  // `reduces`: whether this is a valid all-reduce nevertheless, as it is with a single rank.
  NoAllReduce(Device& device, std::string description, bool reduces)
      : AllReduce({.description = std::move(description),
                   .order = "none",
                   .reduces = reduces,
                   .all_verbs = reduces,
                   .takes_marks = reduces}),
        device_(device) {}

  DeviceView allocate(std::size_t bytes, Memory) override {
    return memory_.emplace_back(device_.allocate(bytes)).view();
  }
  Ticket enqueue(DeviceView, const Request& request) override {
    final_[++last_ % kRemembered] = request.since ? *request.since : device_.mark();
    return last_;
  }
  Range chunk(std::size_t count) const override { return {0, count}; }
  void wait(Ticket ticket) override { device_.seconds(final_[ticket % kRemembered]); }
  void join(Ticket ticket) override { device_.await(final_[ticket % kRemembered]); }

 private:
  static constexpr std::size_t kRemembered = 256;  // more than the buckets that may still be waited for

  Device& device_;
  std::array<Mark, kRemembered> final_;  // when the enqueued arrays were computed
  std::vector<Buffer> memory_;
  Ticket last_ = 0;
};

std::unique_ptr<AllReduce> no_all_reduce_needed(Device& device) {
  return std::make_unique<NoAllReduce>(device, "none: one rank computes each gradient", true);
}

// Runs a host algorithm on arrays in host memory.
std::unique_ptr<AllReduce> run_on_host(const World& world, HostAllReduce host) {
  const std::size_t worth_waking = world.one_node() ? AllReduceWorker::kQuick : 0;
  return std::make_unique<AllReduceWorker>(std::move(host.algorithm), host.name, host.why, worth_waking);
}

}  // namespace

const std::vector<std::string>& all_reduce_names() {
  static const std::vector<std::string> names{"auto",     "shm", "hierarchical", "ring", "message-ring",
                                              "doubling", "mpi", "direct",       "nccl", "none"};
  return names;
}

std::unique_ptr<AllReduce> make_all_reduce(const std::string& algorithm, const World& world, Device& device,
                                           WireType wire, std::optional<std::size_t> crossover) {
  const auto& names = all_reduce_names();
  if (std::ranges::find(names, algorithm) == names.end())
    fail("unknown all-reduce '{}'; choose one of: {}", algorithm, fmt::join(names, ", "));
  if (world.size() == 1) return no_all_reduce_needed(device);
  if (algorithm == "none")
    return std::make_unique<NoAllReduce>(device, "none: gradients are not summed (requested by --all-reduce none)",
                                         false);
  if (!device.info().shares_host_memory) return make_gpu_all_reduce(algorithm, world, device, wire, crossover);
  if (algorithm == "nccl" || algorithm == "direct")
    fail("--all-reduce {} needs a GPU, but this device is a CPU: use auto", algorithm);
  return run_on_host(world, make_host_all_reduce(algorithm, world, wire, crossover));
}

std::unique_ptr<AllReduce> make_shard_all_reduce(const World& world, Device& device, std::size_t shards) {
  if (!device.info().shares_host_memory)
    fail("{} is not supported on GPUs yet: use --device cpu", shards > 0 ? "--shards" : "--survive");
  if (world.size() == 1) return no_all_reduce_needed(device);
  return run_on_host(world, make_host_shard_all_reduce(world, shards));
}

std::unique_ptr<AllReduce> make_node_all_reduce(const World& world, Device& device) {
  const World node = world.node();
  if (node.size() == 1 || !device.info().shares_host_memory) return nullptr;
  try {
    return run_on_host(node, make_host_all_reduce("shm", node, WireType::fp32, std::nullopt));
  } catch (const Error&) {  // no shared memory; the same on all ranks there
    return nullptr;
  }
}

std::string unused_wire(const AllReduce& all_reduce, WireType wire) {
  if (wire == all_reduce.info().wire) return "";
  return fmt::format("--wire {} has no effect, because this all-reduce sends no messages in that format: {}",
                     to_string(wire), all_reduce.info().description);
}

}  // namespace annulus
