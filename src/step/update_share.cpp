#include "src/step/update_share.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/matrix_exchange.h"

namespace annulus {
namespace {

class Whole final : public UpdateShare {
 public:
  explicit Whole(Optimizer& optimizer) : UpdateShare(false, false), optimizer_(optimizer) {}

  void plan(const GradientBuckets& buckets, const SumOverRanks& /*sum*/, const Await& /*await*/) override {
    buckets_ = &buckets;
  }
  void update(std::size_t bucket) override { optimizer_.update(buckets_->range(bucket)); }

 private:
  Optimizer& optimizer_;
  const GradientBuckets* buckets_ = nullptr;
};

// Exchanges arrays in an all-reduce's chunks. Each rank has all gradients.
class ChunkExchange : public MatrixExchange {
 public:
  // REQUIRES: the all-reduce cuts arrays into chunks of about equal size.
  explicit ChunkExchange(AllReduce& all_reduce) : all_reduce_(all_reduce) {
    constexpr std::size_t kFloats = 1 << 24;  // chunks of large arrays are about equal
    const Range chunk = all_reduce.chunk(kFloats);
    ranks_ = (kFloats + chunk.size() / 2) / chunk.size();
    rank_ = (chunk.begin * ranks_ + kFloats / 2) / kFloats;
  }

  void await_by(const UpdateShare::Await& await) { await_ = await; }

  std::size_t ranks() const override { return ranks_; }
  std::size_t rank() const override { return rank_; }
  void gather_gradients(const std::vector<Range>& /*ranges*/) override {}
  DeviceView allocate(std::size_t bytes) override { return all_reduce_.allocate(bytes); }

  void gather(DeviceView parts) override {
    await_(all_reduce_,
           all_reduce_.enqueue(
               parts, {.verb = Verb::all_gather, .next = AllReduce::Next::wait, .bucket = AllReduce::kWithinPass}));
  }

 private:
  AllReduce& all_reduce_;
  std::size_t ranks_, rank_;
  UpdateShare::Await await_;
};

// Each rank has a chunk of each bucket's gradients.
class ScatteredExchange final : public ChunkExchange {
 public:
  ScatteredExchange(AllReduce& all_reduce, DeviceView gradients) : ChunkExchange(all_reduce), gradients_(gradients) {}

  void plan(const GradientBuckets& buckets, const UpdateShare::Await& await) {
    buckets_ = &buckets;
    await_by(await);
  }

  void gather_gradients(const std::vector<Range>& ranges) override {
    for (const Range& bucket : buckets_->ranges()) {
      const auto next = std::ranges::upper_bound(ranges, bucket.begin, {}, &Range::end);
      if (next != ranges.end() && next->begin < bucket.end) gather(slice_of(gradients_, bucket));
    }
  }

 private:
  const DeviceView gradients_;
  const GradientBuckets* buckets_ = nullptr;
};

// All updates, but a single rank on the node computes each matrix.
class WithSharedMatrices final : public UpdateShare {
 public:
  WithSharedMatrices(Optimizer& optimizer, AllReduce& within_node)
      : UpdateShare(false, false, true), optimizer_(optimizer), exchange_(within_node) {
    optimizer_.share_matrices(exchange_);
  }

  void plan(const GradientBuckets& buckets, const SumOverRanks& /*sum*/, const Await& await) override {
    buckets_ = &buckets;
    exchange_.await_by(await);
  }
  void update(std::size_t bucket) override { optimizer_.update(buckets_->range(bucket)); }

 private:
  Optimizer& optimizer_;
  ChunkExchange exchange_;
  const GradientBuckets* buckets_ = nullptr;
};

// The chunk of every bucket that this rank receives in a reduce-scatter. The weights are in the all-reduce's memory, so
// they are gathered in place; if ranks have them in common, they only wait for each other.
class Scattered final : public UpdateShare {
 public:
  explicit Scattered(const StepTools& tools)
      : UpdateShare(true, tools.all_reduce.info().common, tools.optimizer.needs_whole_parameters()),
        parameters_(tools.model.parameters()),
        device_(tools.model.device()),
        all_reduce_(tools.all_reduce),
        optimizer_(tools.optimizer),
        exchange_(tools.all_reduce, parameters_.gradients()) {}

  void plan(const GradientBuckets& buckets, const SumOverRanks& sum, const Await& await) override {
    buckets_ = &buckets;
    exchange_.plan(buckets, await);
    gathered_.resize(buckets.size());
    std::vector<Range> chunks;
    for (std::size_t bucket = 0; bucket < buckets.size(); ++bucket) chunks.push_back(chunk(bucket));
    optimizer_.keep(chunks, sum, &exchange_);
  }

  void update(std::size_t bucket) override {
    optimizer_.update(chunk(bucket));
    updated_ = true;
  }

  // Gathers all buckets of common weights together that were updated since the last time.
  void send_weights(std::size_t bucket) override {
    if (common() && std::exchange(updated_, false)) meeting_ = meet();
    gathered_[bucket] = common() ? meeting_ : gather(parameters_.weights(), bucket);
  }
  void await_weights(std::size_t bucket) override {
    all_reduce_.join(gathered_[bucket]);
    parameters_.weights_changed(buckets_->range(bucket));
  }

  void swap_weights(Parameters& parameters, DeviceView other) override {
    if (!common()) return UpdateShare::swap_weights(parameters, other);
    all_reduce_.join(meet());  // nobody reads them any more
    for (std::size_t bucket = 0; bucket < buckets_->size(); ++bucket)
      device_.swap(slice_of(parameters.weights(), chunk(bucket)), slice_of(other, chunk(bucket)));
    all_reduce_.join(meet());
  }

  DeviceView gather(DeviceView state) override {
    const DeviceView arena = parameters_.gradients();
    optimizer_.read(state, arena);
    AllReduce::Ticket last = 0;
    for (std::size_t bucket = 0; bucket < buckets_->size(); ++bucket) last = gather(arena, bucket);
    all_reduce_.join(last);
    return arena;
  }

 private:
  // In floats of an arena with the gradients' layout.
  Range chunk(std::size_t bucket) const {
    const Range whole = buckets_->range(bucket), part = all_reduce_.chunk(whole.size());
    return {whole.begin + part.begin, whole.begin + part.end};
  }

  // Waits until all ranks have written their chunks of the common weights.
  AllReduce::Ticket meet() const {
    return all_reduce_.enqueue(
        parameters_.weights(),
        {.verb = Verb::all_gather, .next = AllReduce::Next::wait, .bucket = AllReduce::kWithinPass});
  }

  AllReduce::Ticket gather(DeviceView arena, std::size_t bucket) const {
    return all_reduce_.enqueue(slice_of(arena, buckets_->range(bucket)), {.verb = Verb::all_gather, .bucket = bucket});
  }

  Parameters& parameters_;
  Device& device_;
  AllReduce& all_reduce_;
  Optimizer& optimizer_;
  ScatteredExchange exchange_;
  bool updated_ = false;  // some bucket was, since the last meeting
  AllReduce::Ticket meeting_ = 0;
  const GradientBuckets* buckets_ = nullptr;
  std::vector<AllReduce::Ticket> gathered_;  // of each bucket's weights
};

}  // namespace

std::unique_ptr<UpdateShare> make_update_share(Strategy strategy, const StepTools& tools) {
  if (tools.within_node != nullptr) return std::make_unique<WithSharedMatrices>(tools.optimizer, *tools.within_node);
  if (strategy != Strategy::sharded) return std::make_unique<Whole>(tools.optimizer);
  if (const AllReduceInfo& info = tools.all_reduce.info(); !info.all_verbs)
    fail(
        "--strategy sharded needs an all-reduce of reduce-scatter and all-gather, such as {}, and this one is {}: "
        "use --strategy synchronous",
        tools.model.device().info().shares_host_memory ? "ring" : "ring, direct or nccl", info.description);
  return std::make_unique<Scattered>(tools);
}

}  // namespace annulus
