#include "src/step/strategy.h"

namespace annulus {
namespace {

class Synchronous final : public Strategy {
 public:
  explicit Synchronous(Optimizer& optimizer) : optimizer_(optimizer) {}

  bool scatters() const override { return false; }
  void plan(const GradientBuckets& buckets, const SumOverRanks& /*sum*/) override { buckets_ = &buckets; }
  void update(std::size_t bucket) override { optimizer_.update(buckets_->range(bucket)); }
  DeviceView gather(DeviceView state) override { return state; }

 private:
  Optimizer& optimizer_;
  const GradientBuckets* buckets_ = nullptr;
};

}  // namespace

std::unique_ptr<Strategy> make_synchronous_strategy(Optimizer& optimizer) {
  return std::make_unique<Synchronous>(optimizer);
}

}  // namespace annulus
