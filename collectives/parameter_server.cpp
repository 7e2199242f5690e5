#include "collectives/parameter_server.h"

#include <algorithm>

namespace annulus {
namespace {

// Gathers every rank's ranges.
std::vector<std::vector<Range>> gather(const World& world, const std::vector<Range>& own) {
  std::vector<double> numbers;
  for (const Range& range : own) numbers.insert(numbers.end(), {double(range.begin), double(range.end)});
  std::vector<std::vector<Range>> all(static_cast<std::size_t>(world.size()));
  const std::vector<double> gathered = world.gather(std::span<const double>(numbers));
  for (std::size_t i = 0; i < gathered.size(); i += 2)
    all[i / numbers.size()].push_back(
        {static_cast<std::size_t>(gathered[i]), static_cast<std::size_t>(gathered[i + 1])});
  return all;
}

}  // namespace

ParameterServer::ParameterServer(const World& world, const std::vector<Range>& own)
    : worker_backoff_(polls_on_this_node(world.local_size()), world.interruption()),
      owner_backoff_(polls_on_this_node(world.local_size()), world.interruption()),
      world_(world),
      rank_(static_cast<std::size_t>(world.rank())),
      owned_(gather(world, own)) {
  for (std::size_t rank = 0; rank < ranks(); ++rank)
    if (std::ranges::any_of(owned(rank), [](const Range& range) { return range.size() > 0; })) servers_.push_back(rank);
}

}  // namespace annulus
