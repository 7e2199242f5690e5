#include "src/step/replicas.h"

#include <fmt/ranges.h>
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "kernels/base/error.h"

namespace annulus {
namespace {

std::uint64_t hash(Device& device, DeviceView view, std::uint64_t seed) {
  std::vector<std::byte> bytes(view.bytes);
  device.download(view, bytes);
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
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

// Returns the name of the first parameter that is not the same on all ranks; of the optimizer's state if all are.
std::string first_difference(const World& world, Model& model) {
  for (const Parameter& p : model.parameters().all()) {
    const auto hashes = world.gather(hash(model.device(), model.parameters().weight(p), 0));
    if (std::ranges::adjacent_find(hashes, std::ranges::not_equal_to{}) != hashes.end()) return p.name;
  }
  return "the optimizer's state";
}

}  // namespace

std::uint64_t checksum(Model& model, const Optimizer& optimizer) {
  std::uint64_t sum = hash(model.device(), model.parameters().weights(), 0);
  if (optimizer.sharded()) return sum;
  for (std::size_t i = 0; i < optimizer.states(); ++i) sum = hash(model.device(), optimizer.state(i), sum);
  return optimizer.average() ? hash(model.device(), optimizer.average(), sum) : sum;
}

void check_replicas(const World& world, Model& model, const Optimizer& optimizer, const std::string& when) {
  const auto hashes = world.gather(checksum(model, optimizer));
  std::map<std::uint64_t, int> counts;
  for (const std::uint64_t h : hashes) ++counts[h];
  if (counts.size() == 1) return expect_finite(model, when);
  // The hash of the majority is taken for the right one; in a tie, rank 0's.
  std::uint64_t right = hashes[0];
  for (const auto& [h, count] : counts)
    if (count > counts[right]) right = h;
  std::vector<std::size_t> wrong;
  for (std::size_t rank = 0; rank < hashes.size(); ++rank)
    if (hashes[rank] != right) wrong.push_back(rank);
  fail(
      "the replicas differ {}, first in {}: rank {} does not have the values of the others, though all made the same "
      "updates; suspect the memory or the processor of its machine, and resume from a checkpoint, if there is one",
      when, first_difference(world, model), fmt::join(wrong, ", "));
}

}  // namespace annulus
