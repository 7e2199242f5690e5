#include "src/step/verifier.h"

#include <array>
#include <cstring>

#include "kernels/base/split.h"
#include "src/io/hash.h"

namespace annulus {
namespace {

DeviceView part_of(DeviceView arena, std::size_t number) {
  constexpr std::size_t kBlock = 16;  // floats
  const Range part = split_blocks(arena.bytes / sizeof(float), kBlock, Verifier::kParts, number);
  return arena.slice(part.begin * sizeof(float), part.size() * sizeof(float));
}

}  // namespace

Verifier::Verifier(const World& world, Model& model, const Optimizer& optimizer, Step& step, Activity& activity,
                   std::size_t shards)
    : world_(world), model_(model), optimizer_(optimizer), step_(step), activity_(activity), device_(model.device()) {
  step.hooks.reduced = [this](std::size_t bucket, DeviceView sum) { add(bucket, sum); };
  step.hooks.updated = [this] { end_step(); };
  step.hooks.diverged = [this] { explain_divergence(); };
  if (shards > 0) shard_check_.emplace(world, model, optimizer, step, shards);
}

void Verifier::forget() {
  hashes_.clear();
  copied_ = 0;
  if (shard_check_) shard_check_->forget();
}

// Ranks that were lost may have changed the number of buckets.
void Verifier::expect_slots() {
  const std::size_t slots = first_bucket() + step_.buckets().size();
  if (hashes_.size() == slots) return;
  hashes_.assign(slots, {});
  sums_ = device_.allocate(slots * sizeof(ArrayHash));
  zeroed_ = device_.mark();
}

DeviceView Verifier::sum_in(std::size_t slot) const {
  return sums_.view().slice(slot * sizeof(ArrayHash), sizeof(ArrayHash));
}

// Beside the lane, before the updates that may use the sum's memory for a moment.
void Verifier::add(std::size_t bucket, DeviceView sum) {
  expect_slots();
  device_.run_beside([&] {
    device_.await(zeroed_);
    step_.buckets().join_beside(bucket);
    device_.add_hash(sum, sum_in(first_bucket() + bucket));
  });
}

void Verifier::end_step() {
  expect_slots();
  const std::size_t part = optimizer_.step() % kParts;
  const auto add = [&](std::size_t slot, DeviceView arena) { device_.add_hash(part_of(arena, part), sum_in(slot)); };
  add(weights, model_.parameters().weights());
  if (optimizer_.average()) add(average, optimizer_.average());
  for (std::size_t i = 0; i < optimizer_.states(); ++i) add(states + i, optimizer_.state(i));
  compare();
  device_.zero(sums_.view());
  zeroed_ = device_.mark();
}

void Verifier::compare(const StateCopy& copy) {
  copied_ = copy.checksum();
  compare();
}

// Other ranks may be at the end of the step: their loss may be finite.
void Verifier::explain_divergence() {
  compare();
  check_replicas(world_, model_, optimizer_, "as training diverges");
}

void Verifier::compare() {
  activity_.enter(Activity::Phase::meeting);
  expect_slots();
  device_.download(sums_.view(), std::as_writable_bytes(std::span(hashes_)));
  hashes_[copied].words = copied_;
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
  std::vector<ArrayHash> all(bytes.size() / sizeof(ArrayHash));
  std::memcpy(all.data(), bytes.data(), bytes.size());
  const auto in_slot = [&](std::size_t slot) {
    std::vector<std::uint64_t> hashes;
    for (; slot < all.size(); slot += hashes_.size())
      hashes.push_back(hash_bytes(std::as_bytes(std::span(&all[slot], 1))));
    return hashes;
  };
  for (std::size_t slot = first_bucket(); slot < hashes_.size(); ++slot)
    if (const auto hashes = in_slot(slot); !same(hashes))
      blame(world_, "the sums of gradients differ",
            {fmt::format("bucket {} of {}", slot - first_bucket() + 1, step_.buckets().size()), hashes});
  for (std::size_t slot = 0; slot < first_bucket(); ++slot) {
    const auto hashes = in_slot(slot);
    if (same(hashes)) continue;
    const auto found = find_difference(world_, model_, optimizer_);
    blame(world_, "the replicas differ", {found ? found->what : kNothingLasting, hashes});
  }
}

}  // namespace annulus
