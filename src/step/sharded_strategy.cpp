#include <utility>

#include "kernels/base/error.h"
#include "src/step/strategy.h"

namespace annulus {
namespace {

// Each rank updates its chunk of every bucket, that which it receives in a reduce-scatter. The weights are in the
// all-reduce's memory, so they are gathered in place; if ranks have them in common, they only wait for each other.
class Sharded final : public Strategy {
 public:
  Sharded(Model& model, AllReduce& all_reduce, Optimizer& optimizer)
      : parameters_(model.parameters()),
        device_(model.device()),
        all_reduce_(all_reduce),
        optimizer_(optimizer),
        common_(all_reduce.info().common) {}

  bool scatters() const override { return true; }
  bool has_common_weights() const override { return common_; }

  void plan(const GradientBuckets& buckets, const SumOverRanks& sum) override {
    buckets_ = &buckets;
    gathered_.resize(buckets.size());
    std::vector<Range> chunks;
    for (std::size_t bucket = 0; bucket < buckets.size(); ++bucket) chunks.push_back(chunk(bucket));
    optimizer_.keep(chunks, sum);
  }

  void update(std::size_t bucket) override {
    optimizer_.update(chunk(bucket));
    updated_ = true;
  }

  // Of common weights, all buckets that were updated since the last time are gathered together.
  void send_weights(std::size_t bucket) override {
    if (common_ && std::exchange(updated_, false)) meeting_ = meet();
    gathered_[bucket] = common_ ? meeting_ : gather(parameters_.weights(), bucket);
  }
  void await_weights(std::size_t bucket) override {
    all_reduce_.join(gathered_[bucket]);
    parameters_.weights_changed(buckets_->range(bucket));
  }

  void swap_weights(Parameters& parameters, DeviceView other) override {
    if (!common_) return Strategy::swap_weights(parameters, other);
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
  const bool common_;     // whether the weights are the same array on all ranks
  bool updated_ = false;  // some bucket was, since the last meeting
  AllReduce::Ticket meeting_ = 0;
  const GradientBuckets* buckets_ = nullptr;
  std::vector<AllReduce::Ticket> gathered_;  // of each bucket's weights
};

}  // namespace

std::unique_ptr<Strategy> make_sharded_strategy(Model& model, AllReduce& all_reduce, Optimizer& optimizer) {
  const AllReduceInfo& info = all_reduce.info();
  if (!info.halves)
    fail(
        "--strategy sharded needs an all-reduce of reduce-scatter and all-gather, such as {}, and this one is {}: "
        "use --strategy synchronous",
        model.device().info().shares_host_memory ? "ring" : "ring, direct or nccl", info.description);
  return std::make_unique<Sharded>(model, all_reduce, optimizer);
}

}  // namespace annulus
