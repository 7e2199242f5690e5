#include "src/step/replicas.h"

#include <fmt/ranges.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "src/io/hash.h"
#include "src/job/machine.h"

namespace annulus {
namespace {

std::uint64_t hash(Device& device, DeviceView view, std::uint64_t seed) {
  std::vector<std::byte> bytes(view.bytes);
  device.download(view, bytes);
  return hash_bytes(bytes, seed);
}

void expect_finite(Model& model, const std::string& when) {
  std::vector<float> values;
  for (const Parameter& p : model.parameters().all()) {
    values.resize(elements(p.spec.shape));
    model.device().read(p.spec, model.parameters().weight(p), values);
    if (!std::ranges::all_of(values, [](float value) { return std::isfinite(value); }))
      fail("{} is no longer finite {}: training has diverged; lower --lr", p.name, when);
  }
}

// A process's place: host and core.
using Place = std::array<char, 64>;

std::vector<std::string> places_of(const World& world) {
  Place own{};
  fmt::format_to_n(own.data(), own.size() - 1, "{} (core {})", host_name().substr(0, 40), sched_getcpu());
  const std::vector<std::byte> all = world.gather(std::as_bytes(std::span(own)));
  std::vector<std::string> places;
  for (std::size_t begin = 0; begin < all.size(); begin += own.size())
    places.emplace_back(reinterpret_cast<const char*>(all.data() + begin));
  return places;
}

// Returns the ranks without the hash that more than half of them have; all ranks if there is none.
std::vector<std::size_t> minority(const std::vector<std::uint64_t>& hashes) {
  std::map<std::uint64_t, std::size_t> counts;
  for (const std::uint64_t h : hashes) ++counts[h];
  const auto most = std::ranges::max_element(counts, {}, [](const auto& count) { return count.second; });
  const bool majority = 2 * most->second > hashes.size();
  std::vector<std::size_t> ranks;
  for (std::size_t rank = 0; rank < hashes.size(); ++rank)
    if (!majority || hashes[rank] != most->first) ranks.push_back(rank);
  return ranks;
}

}  // namespace

std::optional<Difference> find_difference(const World& world, Model& model, const Optimizer& optimizer) {
  Parameters& parameters = model.parameters();
  const auto compare = [&](const std::string& what, DeviceView view) -> std::optional<Difference> {
    Difference found{what, world.gather(hash(model.device(), view, 0))};
    return same(found.hashes) ? std::nullopt : std::optional(std::move(found));
  };
  for (const Parameter& p : parameters.all())
    if (auto found = compare(p.name, parameters.weight(p))) return found;
  std::vector<std::pair<std::string, DeviceView>> kept;
  for (std::size_t i = 0; i < optimizer.states(); ++i) kept.emplace_back("the optimizer's state", optimizer.state(i));
  if (optimizer.average()) kept.emplace_back("the moving average", optimizer.average());
  if (optimizer.sharded()) kept.clear();
  for (const auto& [name, arena] : kept)
    for (const Parameter& p : parameters.updated())
      if (auto found = compare(fmt::format("{} of {}", name, p.name), arena.slice(p.offset, p.bytes))) return found;
  kept.emplace_back("memory beside the parameters", parameters.weights());
  for (const auto& [name, arena] : kept)
    if (auto found = compare(name, arena)) return found;
  return std::nullopt;
}

void blame(const World& world, const std::string& what, const Difference& difference) {
  const std::vector<std::size_t> ranks = minority(difference.hashes);
  blame(world, fmt::format("{}, first in {}", what, difference.what), ranks,
        ranks.size() == difference.hashes.size() ? "differ, and no majority shows which is right"
        : ranks.size() == 1                      ? "does not have the values of the others"
                                                 : "do not have the values of the others");
}

void blame(const World& world, const std::string& what, const std::vector<std::size_t>& ranks, const std::string& how,
           std::uint64_t sound_until) {
  const std::vector<std::string> places = places_of(world);
  std::vector<int> suspects;
  std::vector<std::string> names;
  for (const std::size_t rank : ranks) {
    suspects.push_back(world.rank_in_job(static_cast<int>(rank)));
    names.push_back(fmt::format("{} on {}", suspects.back(), places[rank]));
  }
  throw ReplicasDiffer(fmt::format("{}: rank{} {} {}; suspect memory, processor and network there", what,
                                   ranks.size() == 1 ? "" : "s", fmt::join(names, ", "), how),
                       std::move(suspects), sound_until);
}

std::uint64_t checksum(Model& model, const Optimizer& optimizer) {
  std::uint64_t sum = hash(model.device(), model.parameters().weights(), 0);
  if (optimizer.sharded()) return sum;
  for (std::size_t i = 0; i < optimizer.states(); ++i) sum = hash(model.device(), optimizer.state(i), sum);
  return optimizer.average() ? hash(model.device(), optimizer.average(), sum) : sum;
}

void check_replicas(const World& world, Model& model, const Optimizer& optimizer, const std::string& when) {
  const std::vector<std::uint64_t> hashes = world.gather(checksum(model, optimizer));
  if (same(hashes)) return expect_finite(model, when);
  const auto found = find_difference(world, model, optimizer);
  blame(world, fmt::format("the replicas differ {}", when), {found ? found->what : kNothingLasting, hashes});
}

}  // namespace annulus
