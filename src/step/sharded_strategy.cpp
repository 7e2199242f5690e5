#include "kernels/base/error.h"
#include "src/step/strategy.h"

namespace annulus {
namespace {

// A rank's chunk of a bucket is that of the all-reduce, in which it receives the sums of a reduce-scatter. The weights
// are in the all-reduce's memory, so they are gathered in place.
class Sharded final : public Strategy {
 public:
  Sharded(Model& model, AllReduce& all_reduce, Optimizer& optimizer)
      : parameters_(model.parameters()), all_reduce_(all_reduce), optimizer_(optimizer) {}

  bool scatters() const override { return true; }

  void plan(const GradientBuckets& buckets) override {
    buckets_ = &buckets;
    std::vector<Range> chunks;
    for (std::size_t bucket = 0; bucket < buckets.size(); ++bucket) chunks.push_back(chunk(bucket));
    optimizer_.keep(chunks);
  }

  void update(std::size_t bucket) override {
    optimizer_.update(chunk(bucket));
    gather(parameters_.weights(), bucket);
  }

  void finish() override { all_reduce_.join(last_); }

  DeviceView gather_state(std::size_t number) override {
    const DeviceView whole = parameters_.gradients();
    optimizer_.read_state(number, {whole.address, whole.bytes});
    for (std::size_t bucket = 0; bucket < buckets_->size(); ++bucket) gather(whole, bucket);
    finish();
    return whole;
  }

 private:
  Range chunk(std::size_t bucket) const {
    const Range whole = buckets_->range(bucket), part = all_reduce_.chunk(whole.size());
    return {whole.begin + part.begin, whole.begin + part.end};
  }

  void gather(DeviceView arena, std::size_t bucket) {
    const Range range = buckets_->range(bucket);
    last_ = all_reduce_.all_gather(arena.slice(range.begin * sizeof(float), range.size() * sizeof(float)),
                                   AllReduce::Next::compute, bucket);
  }

  const Parameters& parameters_;
  AllReduce& all_reduce_;
  Optimizer& optimizer_;
  const GradientBuckets* buckets_ = nullptr;
  AllReduce::Ticket last_ = 0;
};

}  // namespace

std::unique_ptr<Strategy> make_sharded_strategy(Model& model, AllReduce& all_reduce, Optimizer& optimizer) {
  constexpr std::string_view instead = "use --strategy synchronous";
  if (!model.device().info().shares_host_memory) fail("--strategy sharded is not supported on GPUs yet: {}", instead);
  if (!all_reduce.info().halves)
    fail(
        "--strategy sharded needs an all-reduce of reduce-scatter and all-gather, such as ring, and this one is {}: {}",
        all_reduce.info().description, instead);
  return std::make_unique<Sharded>(model, all_reduce, optimizer);
}

}  // namespace annulus
