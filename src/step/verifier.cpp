#include "src/step/verifier.h"

#include <array>
#include <cstring>

#include "kernels/base/split.h"
#include "src/io/hash.h"

namespace annulus {
namespace {

std::uint64_t hash(DeviceView view, std::uint64_t seed = 0) {
  return hash_bytes({view.address, view.bytes}, seed);
}

DeviceView part_of(DeviceView arena, std::size_t number) {
  constexpr std::size_t kBlock = 16;  // floats
  const Range part = split_blocks(arena.bytes / sizeof(float), kBlock, Verifier::kParts, number);
  return arena.slice(part.begin * sizeof(float), part.size() * sizeof(float));
}

}  // namespace

Verifier::Verifier(const World& world, Model& model, const Optimizer& optimizer, Step& step, Activity& activity,
                   std::size_t shards)
    : world_(world), model_(model), optimizer_(optimizer), step_(step), activity_(activity) {
  if (!model.device().info().shares_host_memory) fail("--verify does not work on GPUs yet: use --device cpu");
  step.hooks.reduced = [this](std::size_t bucket, DeviceView sum) { add(bucket, sum); };
  step.hooks.updated = [this] { end_step(); };
  step.hooks.diverged = [this] { explain_divergence(); };
  if (shards > 0) shard_check_.emplace(world, model, optimizer, step, shards);
}

void Verifier::forget() {
  std::ranges::fill(hashes_, 0);
  if (shard_check_) shard_check_->forget();
}

void Verifier::add(std::size_t bucket, DeviceView sum) {
  hashes_.resize(buckets + step_.buckets().size());  // ranks that were lost may have changed it
  hashes_[buckets + bucket] = hash(sum);
}

void Verifier::end_step() {
  const std::size_t part = optimizer_.step() % kParts;
  std::uint64_t all = hash(part_of(model_.parameters().weights(), part));
  for (std::size_t i = 0; i < optimizer_.states(); ++i) all = hash(part_of(optimizer_.state(i), part), all);
  hashes_[state] = optimizer_.average() ? hash(part_of(optimizer_.average(), part), all) : all;
  compare();
}

void Verifier::compare(const StateCopy& copy) {
  hashes_.resize(buckets + step_.buckets().size());  // no step may have run
  hashes_[copied] = copy.checksum();
  compare();
}

// Other ranks may be at the end of the step: their loss may be finite.
void Verifier::explain_divergence() {
  compare();
  check_replicas(world_, model_, optimizer_, "as training diverges");
}

void Verifier::compare() {
  activity_.enter(Activity::Phase::meeting);
  const std::uint64_t all = hash_bytes(std::as_bytes(std::span(hashes_)));
  // Halves, which doubles hold exactly.
  const auto upper = static_cast<double>(all >> 32), lower = static_cast<double>(all & UINT32_MAX);
  std::array<double, 4> most{upper, -upper, lower, -lower};
  world_.maximum(most);
  if (most[0] != -most[1] || most[2] != -most[3]) explain();
}

// Returns if all hashes are the same: then their comparison was disturbed.
void Verifier::explain() {
  const std::vector<std::byte> bytes = world_.gather(std::as_bytes(std::span(hashes_)));
  std::vector<std::uint64_t> all(bytes.size() / sizeof(std::uint64_t));
  std::memcpy(all.data(), bytes.data(), bytes.size());
  const auto in_slot = [&](std::size_t slot) {
    std::vector<std::uint64_t> hashes;
    for (; slot < all.size(); slot += hashes_.size()) hashes.push_back(all[slot]);
    return hashes;
  };
  for (std::size_t slot = buckets; slot < hashes_.size(); ++slot)
    if (const auto hashes = in_slot(slot); !same(hashes))
      blame(world_, "the sums of gradients differ",
            {fmt::format("bucket {} of {}", slot - buckets + 1, hashes_.size() - buckets), hashes});
  for (const std::size_t slot : {state, copied}) {
    const auto hashes = in_slot(slot);
    if (same(hashes)) continue;
    const auto found = find_difference(world_, model_, optimizer_);
    blame(world_, "the replicas differ", {found ? found->what : kNothingLasting, hashes});
  }
}

}  // namespace annulus
