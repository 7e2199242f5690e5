#include "collectives/gpu/make_gpu_all_reduce.h"

#include <algorithm>
#include <string_view>

#include "collectives/gpu/all_reduce_stream.h"
#include "collectives/gpu/direct_all_reduce.h"
#include "collectives/gpu/gpu_sharing.h"
#include "collectives/gpu/hierarchical.h"
#include "collectives/gpu/ipc_ring.h"
#include "collectives/gpu/message_ring.h"
#include "collectives/gpu/nccl.h"
#include "collectives/gpu/staged.h"
#include "kernels/base/error.h"
#include "kernels/cuda/runtime/side_lane.h"

namespace annulus {
namespace {

using Made = std::unique_ptr<AllReduce>;

struct Request {
  const World& world;
  Device& device;
  WireType wire;
  std::optional<std::size_t> crossover;
  std::string why;  // this algorithm, for the user
};

Made on_stream(const Request& request, std::unique_ptr<cuda::SideLane> lane, std::unique_ptr<StreamAlgorithm> algorithm,
               const std::string& name, const std::string& order, WireType wire = WireType::fp32,
               bool all_verbs = true) {
  AllReduceInfo info{.description = fmt::format("{} ({})", name, request.why), .order = order, .wire = wire};
  info.all_verbs = all_verbs;
  return std::make_unique<AllReduceStream>(std::move(info), std::move(lane), std::move(algorithm));
}

std::unique_ptr<cuda::SideLane> make_lane(const Request& request) {
  return std::make_unique<cuda::SideLane>(request.device);
}

// For both algorithms between GPUs that can access each other's memory.
constexpr const char* kRingOrder = "ring of fp32 over the GPUs' memory";

Made make_ring(const Request& request) {
  auto lane = make_lane(request);
  auto ring = make_ipc_ring(request.world, *lane);
  return on_stream(request, std::move(lane), std::move(ring), "ring over the GPUs' memory", kRingOrder);
}

Made make_direct(const Request& request) {
  auto lane = make_lane(request);
  auto direct = make_direct_all_reduce(request.world, *lane);
  return on_stream(request, std::move(lane), std::move(direct), "direct all-reduce over the GPUs' memory", kRingOrder);
}

// Returns how many times as fast as a ring a direct all-reduce is; 0 if it cannot be used. The same on every rank.
double direct_speed_up(const Request& request) {
  const auto lane = make_lane(request);
  const auto ring = make_ipc_ring(request.world, *lane);
  try {
    const auto direct = make_direct_all_reduce(request.world, *lane);
    return ring->measure() / direct->measure();
  } catch (const Error&) {  // the same on every rank
    return 0;
  }
}

// Makes the faster algorithm. Both have the same bits, so different runs may use either. REQUIRES: no ranks share a
// GPU.
Made make_over_peers(const Request& request) {
  const auto because = [&](const std::string& why) {
    return Request{request.world, request.device, request.wire, request.crossover, request.why + why};
  };
  const double speed_up = direct_speed_up(request);
  if (speed_up > 1) return make_direct(because(fmt::format("; {:.1f} times as fast as a ring", speed_up)));
  return make_ring(because(speed_up > 0 ? fmt::format("; {:.1f} times as fast as directly", 1 / speed_up) : ""));
}

// Ranks that share a GPU, and nodes with different numbers of ranks, leave it to the host's algorithm.
bool can_be_hierarchical(const World& world) {
  return !world.one_node() && world.smallest_node() == world.largest_node() && world.local_size() > 1 &&
         shared_gpu(world).empty();
}

std::string vendors_name(WireType wire) {
  return wire == WireType::fp32 ? "NCCL's all-reduce"
                                : fmt::format("all-reduce of {} messages by NCCL", to_string(wire));
}

Made make_hierarchical(const Request& request) {
  auto lane = make_lane(request);
  auto hierarchical = make_gpu_hierarchical(request.world, *lane, request.wire);
  const std::string name = fmt::format("hierarchical: over the {} GPUs' memory on each node, between nodes {}",
                                       request.world.local_size(), vendors_name(request.wire));
  return on_stream(request, std::move(lane), std::move(hierarchical), name, name, request.wire, false);
}

// 16-bit messages are for the network between nodes.
Made make_vendors(const Request& request) {
  const WireType wire = request.world.one_node() ? WireType::fp32 : request.wire;
  auto lane = make_lane(request);
  auto nccl = make_nccl(request.world, *lane, wire);
  const std::string name = vendors_name(wire);
  return on_stream(request, std::move(lane), std::move(nccl), name, name, wire, wire == WireType::fp32);
}

// Stages arrays through host memory for the host's `algorithm`.
Made make_through_host(const std::string& algorithm, const Request& request, const std::string& because = "") {
  HostAllReduce host = make_host_all_reduce(algorithm, request.world, request.wire, request.crossover);
  if (!because.empty()) host.why = because + "; " + host.why;
  return make_staged(request.device, std::move(host));
}

// Returns the same on all ranks.
bool messages_take_gpu_memory(const World& world) {
  return std::ranges::min(world.gather(std::uint64_t{mpi_takes_gpu_memory()})) == 1;
}

// `otherwise`: the host's algorithm to use if MPI cannot send from GPU memory.
Made make_between_nodes(const std::string& otherwise, const Request& request) {
  if (messages_take_gpu_memory(request.world))
    return make_gpu_message_ring(request.world, request.device, request.wire,
                                 "the ranks are on several nodes, and MPI supports GPU memory");
  return make_through_host(otherwise, request, "the ranks are on several nodes, and MPI does not support GPU memory");
}

// Calls `make`, or if that fails, uses the host's algorithms.
Made or_through_host(Made (*make)(const Request&), const Request& request) {
  try {
    return make(request);
  } catch (const Error& error) {  // the same on every rank
    return make_through_host("auto", request, fmt::format("{}; {}", request.why, error.what()));
  }
}

Made make_auto(const Request& request) {
  const World& world = request.world;
  const auto because = [&](std::string why) {
    return Request{world, request.device, request.wire, request.crossover, std::move(why)};
  };
  if (!world.one_node()) {
    if (!shared_gpu(world).empty()) return make_between_nodes("auto", request);
    const Request own_gpus = because("the ranks are on several nodes, and each has a GPU of its own");
    // NCCL's own all-reduce also knows the nodes.
    return or_through_host(
        request.wire != WireType::fp32 && can_be_hierarchical(world) ? make_hierarchical : make_vendors, own_gpus);
  }
  // Ranks that share a GPU take turns of milliseconds, and on the GPU each wait for another rank costs a turn.
  if (!shared_gpu(world).empty()) return make_through_host("auto", request, "ranks that share a GPU wait on the host");
  std::string unreachable;
  try {
    return make_over_peers(because("all ranks are on one node, and each GPU can access its neighbour's memory"));
  } catch (const Error& error) {  // the same on every rank
    unreachable = error.what();
  }
  return or_through_host(make_vendors, because(unreachable));
}

}  // namespace

std::unique_ptr<AllReduce> make_gpu_all_reduce(const std::string& algorithm, const World& world, Device& device,
                                               WireType wire, std::optional<std::size_t> crossover) {
  const Request request{world, device, wire, crossover, "requested by --all-reduce " + algorithm};
  if (algorithm == "auto") return make_auto(request);
  if (algorithm == "nccl") return make_vendors(request);
  if (algorithm == "direct") return make_direct(request);
  if (algorithm == "hierarchical" && can_be_hierarchical(world)) return make_hierarchical(request);
  if (algorithm == "ring") return world.one_node() ? make_ring(request) : make_between_nodes("ring", request);
  return make_through_host(algorithm, request);
}

}  // namespace annulus
