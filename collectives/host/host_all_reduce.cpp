#include "collectives/host/host_all_reduce.h"

#include <algorithm>
#include <array>
#include <ranges>
#include <string_view>

#include "collectives/host/measure.h"
#include "collectives/host/mpi_all_reduce.h"
#include "collectives/host/recursive_doubling.h"
#include "collectives/host/shared_memory_all_reduce.h"
#include "collectives/host/size_dispatch.h"
#include "collectives/host/tree_all_reduce.h"
#include "collectives/ring/compressed_link.h"
#include "collectives/ring/mpi_link.h"
#include "collectives/ring/ring.h"
#include "collectives/ring/shared_memory_link.h"
#include "kernels/base/error.h"

namespace annulus {

namespace {

// Input to every make function.
struct Request {
  const World& world;
  WireType wire;
  std::optional<std::size_t> crossover;
  std::string why;  // this algorithm, for the user
  std::shared_ptr<AllReduceContext> context =
      std::make_shared<AllReduceContext>(polls_on_this_node(world.local_size()), world.interruption());
};

// An algorithm with a name for the user.
struct Named {
  std::unique_ptr<AllReduceAlgorithm> algorithm;
  std::string name;
};

HostAllReduce complete(const Request& request, Named named) {
  return {std::move(named.algorithm), std::move(named.name), request.why};
}

Named message_ring(const World& world, const Request& request) {
  const RingOptions options = message_ring_options(request.world.one_node());
  std::unique_ptr<RingLink> link = std::make_unique<MpiLink>(world, options.in_flight, request.context);
  if (request.wire != WireType::fp32)
    link = std::make_unique<CompressedLink>(std::move(link), request.wire, options.in_flight);
  return {std::make_unique<Ring>(std::move(link), world.rank(), world.size(), request.context, options),
          fmt::format("ring over MPI messages of {}, segments of {} bytes, {} in flight", to_string(request.wire),
                      options.segment_bytes, options.in_flight)};
}

Named shared_memory_ring(const Request& request) {
  const RingOptions options;
  const World& world = request.world;
  auto link = std::make_unique<SharedMemoryLink>(std::make_shared<SharedMemory>(world.node()), options.in_flight,
                                                 options.segment_bytes, request.context);
  return {std::make_unique<Ring>(std::move(link), world.rank(), world.size(), request.context, options),
          "ring in shared memory"};
}

// Measures with an urgent backoff, like a caller that is blocked on the result.
template <class Measure>
auto measuring(const Request& request, const Measure& measure) {
  request.context->backoff.set_urgent(true);
  const auto found = measure();
  request.context->backoff.set_urgent(false);
  return found;
}

// All ranks must use the same crossover, and in a hierarchy several such worlds measure.
std::size_t measured_crossover(const World& world, AllReduceAlgorithm& small, AllReduceAlgorithm& large,
                               const Request& request) {
  const std::uint64_t own = measuring(request, [&] { return measure_crossover(world, small, large); });
  return std::ranges::min(request.world.gather(own));
}

// The faster algorithm over messages for each array size.
Named over_messages(const World& world, const Request& request) {
  auto doubling = std::make_unique<RecursiveDoubling>(world, request.wire, request.context);
  Named ring = message_ring(world, request);
  const std::size_t crossover =
      request.crossover ? *request.crossover : measured_crossover(world, *doubling, *ring.algorithm, request);
  return {std::make_unique<SizeDispatch>(std::move(doubling), std::move(ring.algorithm), crossover),
          fmt::format("{}, recursive doubling up to {} KiB{}", ring.name, crossover / 1024,
                      request.crossover ? " as before" : "")};
}

HostAllReduce make_ring(const Request& request) {
  return complete(request,
                  request.world.one_node() ? shared_memory_ring(request) : message_ring(request.world, request));
}

HostAllReduce make_message_ring(const Request& request) {
  return complete(request, message_ring(request.world, request));
}

HostAllReduce make_doubling(const Request& request) {
  return complete(request, {std::make_unique<RecursiveDoubling>(request.world, request.wire, request.context),
                            fmt::format("recursive doubling over MPI messages of {}", to_string(request.wire))});
}

Named shm(const Request& request) {
  auto shm = std::make_unique<SharedMemoryAllReduce>(request.world.node(), nullptr, request.context);
  const std::size_t small = measuring(request, [&] { return shm->measure_small(); });
  return {std::move(shm), fmt::format("shm, in shared memory, up to {} bytes summed by every rank", small)};
}

HostAllReduce make_shm(const Request& request) {
  const World& world = request.world;
  if (!world.one_node())
    fail("--all-reduce shm needs shared memory, but the {} ranks are on several nodes: use hierarchical or auto",
         world.size());
  return complete(request, shm(request));
}

HostAllReduce make_hierarchical(const Request& request) {
  const World& world = request.world;
  if (world.one_node() || world.smallest_node() != world.largest_node() || world.largest_node() == 1)
    fail(
        "--all-reduce hierarchical needs several nodes with the same number of ranks, at least two; these nodes have "
        "{} to {} of the {} ranks: use auto",
        world.smallest_node(), world.largest_node(), world.size());
  Named across_nodes = over_messages(world.across_nodes(), request);
  return complete(request, {std::make_unique<SharedMemoryAllReduce>(world.node(), std::move(across_nodes.algorithm),
                                                                    request.context),
                            "hierarchical: in shared memory on each node, between nodes " + across_nodes.name});
}

HostAllReduce make_mpi(const Request& request) {
  return complete(request, {std::make_unique<MpiAllReduce>(request.world, request.context), "MPI_Allreduce"});
}

// Returns the faster of shm and the ring, which give the same bits, and the reason for the choice.
std::pair<Named, std::string> faster_in_shared_memory(const Request& request) {
  constexpr std::size_t bytes = 1 << 20;
  const auto seconds = [&](AllReduceAlgorithm& algorithm) {
    const auto memory = algorithm.allocate(bytes);
    const std::span values(reinterpret_cast<float*>(memory.data()), memory.size() / sizeof(float));
    return measuring(request, [&] { return all_reduce_seconds(request.world, algorithm, values); });
  };
  Named first = shm(request), second = shared_memory_ring(request);
  const double of_shm = seconds(*first.algorithm), of_ring = seconds(*second.algorithm);
  return {of_ring < of_shm ? std::move(second) : std::move(first),
          fmt::format("all ranks are on one node; 1 MiB takes {:.0f} us with shm, {:.0f} us with the ring",
                      1e6 * of_shm, 1e6 * of_ring)};
}

HostAllReduce make_auto(const Request& request) {
  const World& world = request.world;
  const auto because = [&](std::string why) {
    return Request{world, request.wire, request.crossover, std::move(why), request.context};
  };
  const auto messages = [&](std::string why) {
    return complete(because(std::move(why)), over_messages(world, request));
  };
  const int ranks = world.largest_node();
  if (ranks == 1) return messages("every rank has a node of its own");
  if (world.smallest_node() != ranks) return messages("the nodes have different numbers of ranks");
  if (!world.one_node())
    return make_hierarchical(because(fmt::format("{} nodes with {} ranks each", world.size() / ranks, ranks)));
  try {
    auto [choice, why] = faster_in_shared_memory(request);
    return complete(because(why), std::move(choice));
  } catch (const Error& error) {  // no shared memory; the same on every rank
    return messages(error.what());
  }
}

struct Choice {
  std::string_view name;
  HostAllReduce (*make)(const Request& request);
};
constexpr std::array kChoices = {Choice{"auto", make_auto},
                                 Choice{"ring", make_ring},
                                 Choice{"message-ring", make_message_ring},
                                 Choice{"shm", make_shm},
                                 Choice{"hierarchical", make_hierarchical},
                                 Choice{"doubling", make_doubling},
                                 Choice{"mpi", make_mpi}};

}  // namespace

HostAllReduce make_host_all_reduce(const std::string& algorithm, const World& world, WireType wire,
                                   std::optional<std::size_t> crossover) {
  const auto* choice = std::ranges::find(kChoices, algorithm, &Choice::name);
  if (choice == kChoices.end()) fail("unknown all-reduce in host memory '{}'", algorithm);
  return choice->make({world, wire, crossover, "requested by --all-reduce " + algorithm});
}

HostAllReduce make_host_shard_all_reduce(const World& world, std::size_t shards) {
  const Request request{world, WireType::fp32, std::nullopt,
                        shards > 0 ? fmt::format("--shards {}", shards) : "--survive"};
  return complete(request, {std::make_unique<TreeAllReduce>(world, shards, request.context),
                            shards > 0 ? "tree of shards" : "tree of ranks"});
}

}  // namespace annulus
