#include "src/step/shard_check.h"

#include <algorithm>
#include <cstring>

namespace annulus {
namespace {

// Calls visit(the first samples' values) for each array in a batch.
template <class AnyBatch, class Visit>
void for_each_array(AnyBatch& batch, std::size_t size, std::size_t samples, const Visit& visit) {
  const auto first = [&](auto& values) {
    visit(std::as_writable_bytes(std::span(values).first(values.size() / size * samples)));
  };
  first(batch.images);
  first(batch.labels);
  first(batch.targets);
  first(batch.mixed_labels);
  first(batch.keys);
}

}  // namespace

ShardCheck::ShardCheck(const World& world, Model& model, const Optimizer& optimizer, Step& step, std::size_t shards)
    : world_(world),
      model_(model),
      optimizer_(optimizer),
      step_(step),
      shards_(shards),
      sound_until_(optimizer.step()) {
  step.hooks.begin = [this](const Batch& batch) { begin(batch); };
  step.hooks.computed = [this](const BatchPart& part, std::size_t count) { compute(part, count); };
  step.hooks.updated = [this, next = std::move(step.hooks.updated)] {
    next();
    end_step();
  };
}

// Shards with unequal sizes are left out: a network for the other size may not be planned.
void ShardCheck::begin(const Batch& batch) {
  hash_.reset();
  if (world_.size() == 1 || optimizer_.step() + 1 < next_ || batch.step.global_batch() % shards_ != 0) return;
  step_.finish();
  const Batch other = of_previous_rank(batch);
  begin_hash();
  step_.compute_again(other);
  again_ = hash_->value();
  begin_hash();
}

void ShardCheck::begin_hash() {
  hash_.emplace();
  hashed_ = 0;
}

// Exchanges first shards' samples.
Batch ShardCheck::of_previous_rank(const Batch& batch) const {
  const int ranks = world_.size(), next = (world_.rank() + 1) % ranks, previous = (world_.rank() + ranks - 1) % ranks;
  const std::size_t samples = batch.step.global_batch() / shards_;
  Batch shard = batch;
  std::vector<std::byte> own;
  for_each_array(shard, batch.size(), samples,
                 [&](std::span<std::byte> bytes) { own.insert(own.end(), bytes.begin(), bytes.end()); });
  std::vector<std::byte> other(own.size());
  MPI_Request receive = MPI_REQUEST_NULL, send = MPI_REQUEST_NULL;
  const Channel channel = world_.channel();
  channel.start_receiving(other, previous, receive);
  channel.start_sending(own, next, send);
  channel.complete({&receive, 1}, {&send, 1});
  std::size_t place = 0;
  for_each_array(shard, batch.size(), samples, [&](std::span<std::byte> bytes) {
    std::memcpy(bytes.data(), other.data() + place, bytes.size());
    place += bytes.size();
  });
  shard.images.resize(shard.images.size() / batch.size() * samples);
  shard.targets.resize(shard.targets.size() / batch.size() * samples);
  shard.mixed_labels.resize(shard.mixed_labels.size() / batch.size() * samples);
  shard.keys.resize(shard.keys.size() / batch.size() * samples);
  shard.labels.resize(samples);
  return shard;
}

// The passes do not write control flags, which are before the gradients.
void ShardCheck::compute(const BatchPart& part, std::size_t count) {
  if (!hash_ || part.number > 0) return;
  const std::size_t begin = std::max(hashed_, model_.parameters().control_flags().bytes / sizeof(float));
  if (count <= begin) return;
  const DeviceView gradients = model_.parameters().gradients();
  hash_->add(std::span<const std::byte>(gradients.address, gradients.bytes)
                 .subspan(begin * sizeof(float), (count - begin) * sizeof(float)));
  hashed_ = count;
}

void ShardCheck::end_step() {
  if (!hash_) return;
  const std::vector<std::uint64_t> own = world_.gather(hash_->value()), again = world_.gather(again_);
  hash_.reset();
  std::vector<std::size_t> wrong;  // number of pairs in which a rank differs
  wrong.resize(own.size());
  for (std::size_t rank = 0; rank < own.size(); ++rank)
    if (const std::size_t next = (rank + 1) % own.size(); own[rank] != again[next]) {
      ++wrong[rank];
      ++wrong[next];
    }
  if (std::ranges::count(wrong, 0) != std::ssize(wrong)) blame_ranks(wrong);
  sound_until_ = optimizer_.step();
  next_ = sound_until_ + std::max<std::size_t>(kEvery * own.size() / shards_, 1);
}

// Names the rank whose weights differ, if any: its gradients do, too. Else the ranks that differ
// from most neighbours.
void ShardCheck::blame_ranks(const std::vector<std::size_t>& wrong) const {
  if (const auto difference = find_difference(world_, model_, optimizer_))
    blame(world_, "the replicas differ", *difference);
  const std::size_t most = *std::ranges::max_element(wrong);
  std::vector<std::size_t> ranks;
  for (std::size_t rank = 0; rank < wrong.size(); ++rank)
    if (wrong[rank] == most) ranks.push_back(rank);
  blame(world_, "a shard has other gradients when another rank computes it", ranks,
        ranks.size() == 1 ? "computes other gradients than both neighbours"
                          : "compute different gradients, and nothing shows which are right",
        sound_until_);
}

}  // namespace annulus
