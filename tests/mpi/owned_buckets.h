#pragma once

#include <vector>

#include "src/step/update_share.h"

namespace annulus::test {

// An example of an UpdateShare: rank r of N updates the buckets r, r + N, r + 2N, ..., and only it keeps their
// optimizer states. The other ranks get the weights from an all-reduce, to which they add zeros.
class OwnedBuckets final : public UpdateShare {
 public:
  OwnedBuckets(const StepTools& tools, std::size_t rank, std::size_t ranks)
      : UpdateShare(/*scatters=*/false, /*common=*/false), tools_(tools), rank_(rank), ranks_(ranks) {}

  void plan(const GradientBuckets& buckets, const SumOverRanks& sum, const Await& /*await*/) override {
    buckets_ = &buckets;
    std::vector<Range> own;
    for (std::size_t bucket = rank_; bucket < buckets.size(); bucket += ranks_) own.push_back(buckets.range(bucket));
    tools_.optimizer.keep(own, sum);
  }
  void update(std::size_t bucket) override {
    if (bucket % ranks_ == rank_) tools_.optimizer.update(buckets_->range(bucket));
    share(tools_.model.parameters().weights(), bucket);
    tools_.model.parameters().weights_changed(buckets_->range(bucket));
  }
  DeviceView gather(DeviceView state) override {
    const DeviceView arena = tools_.model.parameters().gradients();
    tools_.optimizer.read(state, arena);
    for (std::size_t bucket = 0; bucket < buckets_->size(); ++bucket) share(arena, bucket);
    return arena;
  }

 private:
  void share(DeviceView arena, std::size_t bucket) {
    const DeviceView values = slice_of(arena, buckets_->range(bucket));
    if (bucket % ranks_ != rank_) tools_.model.device().zero(values);
    tools_.all_reduce.join(tools_.all_reduce.enqueue(values, {.bucket = bucket}));
  }

  const StepTools tools_;
  const std::size_t rank_, ranks_;
  const GradientBuckets* buckets_ = nullptr;
};

}  // namespace annulus::test
