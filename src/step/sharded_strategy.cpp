#include "kernels/base/error.h"
#include "src/step/strategy.h"

namespace annulus {
namespace {

// Each rank updates its chunk of every bucket, that which it receives in a reduce-scatter. The weights are in the
// all-reduce's memory, so they are gathered in place.
class Sharded final : public Strategy {
 public:
  Sharded(Model& model, AllReduce& all_reduce, Optimizer& optimizer)
      : parameters_(model.parameters()), all_reduce_(all_reduce), optimizer_(optimizer) {}

  bool scatters() const override { return true; }

  void plan(const GradientBuckets& buckets, const SumOverRanks& sum) override {
    buckets_ = &buckets;
    gathered_.resize(buckets.size());
    std::vector<Range> chunks;
    for (std::size_t bucket = 0; bucket < buckets.size(); ++bucket) chunks.push_back(chunk(bucket));
    optimizer_.keep(chunks, sum);
  }

  void update(std::size_t bucket) override { optimizer_.update(chunk(bucket)); }

  void send_weights(std::size_t bucket) override { gathered_[bucket] = gather(parameters_.weights(), bucket); }
  void await_weights(std::size_t bucket) override { all_reduce_.join(gathered_[bucket]); }

  DeviceView gather(DeviceView state) override {
    const DeviceView arena = parameters_.gradients();
    optimizer_.read(state, {arena.address, arena.bytes});
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

  AllReduce::Ticket gather(DeviceView arena, std::size_t bucket) const {
    const Range range = buckets_->range(bucket);
    return all_reduce_.all_gather(arena.slice(range.begin * sizeof(float), range.size() * sizeof(float)),
                                  AllReduce::Next::compute, bucket);
  }

  const Parameters& parameters_;
  AllReduce& all_reduce_;
  Optimizer& optimizer_;
  const GradientBuckets* buckets_ = nullptr;
  std::vector<AllReduce::Ticket> gathered_;  // of each bucket's weights
};

}  // namespace

std::unique_ptr<Strategy> make_sharded_strategy(Model& model, AllReduce& all_reduce, Optimizer& optimizer) {
  if (!all_reduce.info().halves)
    fail(
        "--strategy sharded needs an all-reduce of reduce-scatter and all-gather, such as ring, and this one is {}: "
        "use "
        "--strategy synchronous",
        all_reduce.info().description);
  return std::make_unique<Sharded>(model, all_reduce, optimizer);
}

}  // namespace annulus
