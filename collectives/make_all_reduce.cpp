#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <ranges>
#include <string_view>

#include "collectives/all_reduce_worker.h"
#include "collectives/direct.h"
#include "collectives/mpi_link.h"
#include "collectives/mpi_sum.h"
#include "collectives/ring.h"
#include "kernels/error.h"

namespace annulus {

namespace {

class NothingToAdd final : public AllReduce {
 public:
  std::string description() const override { return "none: a world of one has nothing to add"; }
  std::span<std::byte> allocate(std::size_t bytes) override {
    const DeviceView memory = memory_.emplace_back(allocate_host(bytes)).view();
    return {memory.address, memory.bytes};
  }
  Ticket enqueue(std::span<float>) override { return ++last_; }
  void wait(Ticket) override {}
  std::uint64_t bytes_sent() const override { return 0; }

 private:
  std::vector<Buffer> memory_;
  Ticket last_ = 0;
};

using Made = std::unique_ptr<AllReduce>;

template <class Algorithm, class... Arguments>
Made make_worker(const std::shared_ptr<Patience>& patience, std::string description, Arguments&&... arguments) {
  return std::make_unique<AllReduceWorker>(std::make_unique<Algorithm>(std::forward<Arguments>(arguments)...), patience,
                                           std::move(description));
}

Made make_ring(const World& world, const std::string& why) {
  const RingOptions options;
  const auto patience = std::make_shared<Patience>();
  return make_worker<Ring>(patience,
                           fmt::format("ring over MPI messages, {} KiB segments, {} in flight ({})",
                                       options.segment_bytes / 1024, options.in_flight, why),
                           std::make_unique<MpiLink>(world, options.in_flight, patience), world.rank(), world.size(),
                           options);
}

Made make_direct(const World& world, const std::string& why) {
  if (!world.one_node())
    fail("--all-reduce direct adds in shared memory, but the {} ranks are on several nodes: use ring or auto",
         world.size());
  const auto patience = std::make_shared<Patience>();
  return make_worker<Direct>(patience, fmt::format("direct, in memory that the ranks share ({})", why), world.node(),
                             patience);
}

Made make_mpi(const World& world, const std::string& why) {
  return make_worker<MpiSum>(std::make_shared<Patience>(), fmt::format("MPI_Allreduce ({})", why), world);
}

Made make_auto(const World& world, const std::string&) {
  if (!world.one_node()) return make_ring(world, "the ranks are on several nodes");
  try {
    return make_direct(world, "all ranks are on one node");
  } catch (const Error& error) {  // every rank is told when shared memory fails
    return make_ring(world, error.what());
  }
}

struct Choice {
  std::string_view name;
  Made (*make)(const World&, const std::string& why);
};
constexpr std::array kChoices = {Choice{"auto", make_auto}, Choice{"ring", make_ring}, Choice{"direct", make_direct},
                                 Choice{"mpi", make_mpi}};

}  // namespace

std::unique_ptr<AllReduce> make_all_reduce(const std::string& algorithm, const World& world) {
  const auto* choice = std::ranges::find(kChoices, algorithm, &Choice::name);
  if (choice == kChoices.end())
    fail("there is no all-reduce called '{}'; choose one of: {}", algorithm,
         fmt::join(kChoices | std::views::transform(&Choice::name), ", "));
  if (world.size() == 1) return std::make_unique<NothingToAdd>();
  return choice->make(world, "asked for by --all-reduce " + algorithm);
}

}  // namespace annulus
