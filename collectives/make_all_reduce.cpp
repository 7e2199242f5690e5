#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <ranges>
#include <string_view>

#include "collectives/all_reduce_worker.h"
#include "collectives/mpi_link.h"
#include "collectives/mpi_sum.h"
#include "collectives/ring.h"
#include "kernels/error.h"

namespace annulus {

namespace {

class NothingToAdd final : public AllReduce {
 public:
  std::string description() const override { return "none (a world of one has nothing to add)"; }
  Ticket enqueue(std::span<float>) override { return ++last_; }
  void wait(Ticket) override {}
  std::uint64_t bytes_sent() const override { return 0; }

 private:
  Ticket last_ = 0;
};

std::unique_ptr<AllReduce> make_ring(const World& world, std::shared_ptr<Patience> patience) {
  const RingOptions options;
  auto link = std::make_unique<MpiLink>(world, options.in_flight, patience);
  auto ring = std::make_unique<Ring>(std::move(link), world.rank(), world.size(), options);
  return std::make_unique<AllReduceWorker>(
      std::move(ring), std::move(patience),
      fmt::format("ring over MPI messages, {} KiB segments, {} in flight (asked for by --all-reduce ring)",
                  options.segment_bytes / 1024, options.in_flight));
}

std::unique_ptr<AllReduce> make_mpi(const World& world, std::shared_ptr<Patience> patience) {
  return std::make_unique<AllReduceWorker>(std::make_unique<MpiSum>(world), std::move(patience),
                                           "MPI_Allreduce (asked for by --all-reduce mpi)");
}

struct Choice {
  std::string_view name;
  std::unique_ptr<AllReduce> (*make)(const World&, std::shared_ptr<Patience>);
};
constexpr std::array kChoices = {Choice{"ring", make_ring}, Choice{"mpi", make_mpi}};

}  // namespace

std::unique_ptr<AllReduce> make_all_reduce(const std::string& algorithm, const World& world) {
  const auto* choice = std::ranges::find(kChoices, algorithm, &Choice::name);
  if (choice == kChoices.end())
    fail("there is no all-reduce called '{}'; choose one of: {}", algorithm,
         fmt::join(kChoices | std::views::transform(&Choice::name), ", "));
  if (world.size() == 1) return std::make_unique<NothingToAdd>();
  return choice->make(world, std::make_shared<Patience>());
}

}  // namespace annulus
