#include "src/step/update_share.h"

#include <utility>
#include <vector>

#include "kernels/base/error.h"

namespace annulus {
namespace {

class Whole final : public UpdateShare {
 public:
  explicit Whole(Optimizer& optimizer) : UpdateShare(false, false), optimizer_(optimizer) {}

  void plan(const GradientBuckets& buckets, const SumOverRanks& /*sum*/) override { buckets_ = &buckets; }
  void update(std::size_t bucket) override { optimizer_.update(buckets_->range(bucket)); }

 private:
  Optimizer& optimizer_;
  const GradientBuckets* buckets_ = nullptr;
};

// The chunk of every bucket that this rank receives in a reduce-scatter. The weights are in the all-reduce's memory, so
// they are gathered in place; if ranks have them in common, they only wait for each other.
class Scattered final : public UpdateShare {
 public:
  explicit Scattered(const StepTools& tools)
      : UpdateShare(true, tools.all_reduce.info().common),
        parameters_(tools.model.parameters()),
        device_(tools.model.device()),
        all_reduce_(tools.all_reduce),
        optimizer_(tools.optimizer) {}

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
  bool updated_ = false;  // some bucket was, since the last meeting
  AllReduce::Ticket meeting_ = 0;
  const GradientBuckets* buckets_ = nullptr;
  std::vector<AllReduce::Ticket> gathered_;  // of each bucket's weights
};

}  // namespace

std::unique_ptr<UpdateShare> make_update_share(Strategy strategy, const StepTools& tools) {
  if (strategy != Strategy::sharded) return std::make_unique<Whole>(tools.optimizer);
  if (const AllReduceInfo& info = tools.all_reduce.info(); !info.all_verbs)
    fail(
        "--strategy sharded needs an all-reduce of reduce-scatter and all-gather, such as {}, and this one is {}: "
        "use --strategy synchronous",
        tools.model.device().info().shares_host_memory ? "ring" : "ring, direct or nccl", info.description);
  return std::make_unique<Scattered>(tools);
}

}  // namespace annulus
