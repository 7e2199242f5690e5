#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <ranges>
#include <string_view>

#include "collectives/all_reduce_worker.h"
#include "collectives/by_size.h"
#include "collectives/direct.h"
#include "collectives/doubling.h"
#include "collectives/mpi_link.h"
#include "collectives/mpi_sum.h"
#include "collectives/ring.h"
#include "kernels/error.h"

namespace annulus {

namespace {

class NoSum final : public AllReduce {
 public:
  // `sums`: whether this is nevertheless the sum, as it is in a world of one.
  NoSum(std::string description, bool sums) : description_(std::move(description)), sums_(sums) {}

  std::string description() const override { return description_; }
  bool sums() const override { return sums_; }
  std::span<std::byte> allocate(std::size_t bytes) override {
    const DeviceView memory = memory_.emplace_back(allocate_host(bytes)).view();
    return {memory.address, memory.bytes};
  }
  Ticket enqueue(std::span<float>, Next) override { return ++last_; }
  void wait(Ticket) override {}
  std::uint64_t bytes_sent() const override { return 0; }

 private:
  std::string description_;
  bool sums_;
  std::vector<Buffer> memory_;
  Ticket last_ = 0;
};

using Made = std::unique_ptr<AllReduce>;

std::shared_ptr<Patience> make_patience(const World& world) {
  return std::make_shared<Patience>(looks_on_this_node(world.local_size()));
}

// The ring over messages, and what it is called.
std::unique_ptr<SumAlgorithm> message_ring(const World& world, const std::shared_ptr<Patience>& patience) {
  const RingOptions options;
  return std::make_unique<Ring>(std::make_unique<MpiLink>(world, options.in_flight, patience), world.rank(),
                                world.size(), options);
}

std::string ring_name() {
  const RingOptions options;
  return fmt::format("ring over MPI messages, {} KiB segments, {} in flight", options.segment_bytes / 1024,
                     options.in_flight);
}

Made make_worker(std::unique_ptr<SumAlgorithm> algorithm, std::shared_ptr<Patience> patience, std::string description) {
  return std::make_unique<AllReduceWorker>(std::move(algorithm), std::move(patience), std::move(description));
}

Made make_ring(const World& world, const std::string& why) {
  const auto patience = make_patience(world);
  return make_worker(message_ring(world, patience), patience, fmt::format("{} ({})", ring_name(), why));
}

Made make_doubling(const World& world, const std::string& why) {
  const auto patience = make_patience(world);
  return make_worker(std::make_unique<Doubling>(world, patience), patience,
                     fmt::format("recursive doubling over MPI messages ({})", why));
}

Made make_direct(const World& world, const std::string& why) {
  if (!world.one_node())
    fail("--all-reduce direct adds in shared memory, but the {} ranks are on several nodes: use hierarchical or auto",
         world.size());
  const auto patience = make_patience(world);
  return make_worker(std::make_unique<Direct>(world.node(), nullptr, patience), patience,
                     fmt::format("direct, in memory that the ranks share ({})", why));
}

// Over messages, the better one for each size.
std::unique_ptr<SumAlgorithm> over_messages(const World& world, const std::shared_ptr<Patience>& patience,
                                            std::string& name) {
  auto doubling = std::make_unique<Doubling>(world, patience);
  auto ring = message_ring(world, patience);
  patience->set_urgent(true);
  const std::size_t crossover = measure_crossover(world, *doubling, *ring);
  patience->set_urgent(false);
  name = fmt::format("{}, recursive doubling up to {} KiB", ring_name(), crossover / 1024);
  return std::make_unique<BySize>(std::move(doubling), std::move(ring), crossover);
}

Made make_messages(const World& world, const std::string& why) {
  const auto patience = make_patience(world);
  std::string name;
  auto algorithm = over_messages(world, patience, name);
  return make_worker(std::move(algorithm), patience, fmt::format("{} ({})", name, why));
}

Made make_hierarchical(const World& world, const std::string& why) {
  if (world.one_node() || world.smallest_node() != world.largest_node() || world.largest_node() == 1)
    fail(
        "--all-reduce hierarchical is for several nodes with equally many ranks, more than one, on each; here nodes "
        "have "
        "{} to {} of {} ranks: use auto",
        world.smallest_node(), world.largest_node(), world.size());
  const auto patience = make_patience(world);
  std::string name;
  auto across_nodes = over_messages(world.across_nodes(), patience, name);
  return make_worker(std::make_unique<Direct>(world.node(), std::move(across_nodes), patience), patience,
                     fmt::format("hierarchical, in shared memory on each node, between nodes {} ({})", name, why));
}

Made make_mpi(const World& world, const std::string& why) {
  return make_worker(std::make_unique<MpiSum>(world), make_patience(world), fmt::format("MPI_Allreduce ({})", why));
}

Made make_auto(const World& world, const std::string&) {
  const int ranks = world.largest_node();
  if (ranks == 1) return make_messages(world, "every rank has a node of its own");
  if (world.smallest_node() != ranks) return make_messages(world, "the nodes have different numbers of ranks");
  try {
    if (world.one_node()) return make_direct(world, "all ranks are on one node");
    return make_hierarchical(world, fmt::format("{} nodes with {} ranks each", world.size() / ranks, ranks));
  } catch (const Error& error) {  // shared memory failed, which every rank of the node was told, and no other
    if (!world.one_node()) throw;
    return make_messages(world, error.what());
  }
}

Made make_none(const World&, const std::string& why) {
  return std::make_unique<NoSum>(fmt::format("none: gradients are not summed ({})", why), false);
}

struct Choice {
  std::string_view name;
  Made (*make)(const World&, const std::string& why);
};
constexpr std::array kChoices = {Choice{"auto", make_auto},         Choice{"ring", make_ring},
                                 Choice{"direct", make_direct},     Choice{"hierarchical", make_hierarchical},
                                 Choice{"doubling", make_doubling}, Choice{"mpi", make_mpi},
                                 Choice{"none", make_none}};

}  // namespace

std::unique_ptr<AllReduce> make_all_reduce(const std::string& algorithm, const World& world) {
  const auto* choice = std::ranges::find(kChoices, algorithm, &Choice::name);
  if (choice == kChoices.end())
    fail("there is no all-reduce called '{}'; choose one of: {}", algorithm,
         fmt::join(kChoices | std::views::transform(&Choice::name), ", "));
  if (world.size() == 1) return std::make_unique<NoSum>("none: a world of one has nothing to add", true);
  return choice->make(world, "asked for by --all-reduce " + algorithm);
}

}  // namespace annulus
