#include <algorithm>
#include <cmath>

#include "kernels/base/error.h"
#include "kernels/cpu/loops/math.h"
#include "kernels/cpu/plan/plain_op.h"

namespace annulus::cpu {
namespace {

class CachedAttentionOp : public PlainOp {
 public:
  CachedAttentionOp(const CachedAttention& operation, const Specs& inputs)
      : PlainOp(inputs, operation.output_shape({inputs[0].shape, inputs[1].shape})),
        heads_(operation.heads),
        positions_(operation.positions),
        width_(shape()[2]),
        each_(width_ / heads_),
        keys_(shape()[0] * positions_ * width_),
        values_(keys_.size()),
        weights_(shape()[0] * heads_ * positions_) {}

 private:
  void compute() override {
#pragma omp parallel for schedule(static) collapse(2)
    for (std::size_t sample = 0; sample < shape()[0]; ++sample)
      for (std::size_t head = 0; head < heads_; ++head) attend(sample, head);
  }

  // Stores a head's key and value of the token, and computes its output.
  void attend(std::size_t sample, std::size_t head) {
    const auto position = static_cast<std::size_t>(integers(input_view(1))[sample]);
    const float* query = input(0) + sample * 3 * width_ + head * each_;
    const std::size_t cache = sample * positions_ * width_ + head * each_;
    float *keys = keys_.data() + cache, *values = values_.data() + cache;
    std::copy_n(query + width_, each_, keys + position * width_);
    std::copy_n(query + 2 * width_, each_, values + position * width_);

    float* weights = weights_.data() + (sample * heads_ + head) * positions_;
    const float scale = 1 / std::sqrt(static_cast<float>(each_));
    for (std::size_t at = 0; at <= position; ++at) {
      float sum = 0;
#pragma omp simd reduction(+ : sum)
      for (std::size_t i = 0; i < each_; ++i) sum += query[i] * keys[at * width_ + i];
      weights[at] = scale * sum;
    }
    const float largest = *std::max_element(weights, weights + position + 1);
    float total = 0;
    for (std::size_t at = 0; at <= position; ++at) total += weights[at] = exponential(weights[at] - largest);
    float* to = output() + sample * width_ + head * each_;
    std::fill_n(to, each_, 0.0f);
    for (std::size_t at = 0; at <= position; ++at) {
      const float weight = weights[at] / total;
#pragma omp simd
      for (std::size_t i = 0; i < each_; ++i) to[i] += weight * values[at * width_ + i];
    }
  }

  void differentiate() override {}  // it is only planned for inference

  std::size_t heads_, positions_, width_, each_;  // each_: a head's
  std::vector<float> keys_, values_;              // {batch, positions, width}
  std::vector<float> weights_;                    // {batch, heads, positions}, for the last token
};

}  // namespace

std::unique_ptr<Op> plan(const CachedAttention& operation, const Specs& inputs, Mode mode, const Specs&) {
  if (mode == Mode::training) fail("cached attention cannot be trained");
  return std::make_unique<CachedAttentionOp>(operation, inputs);
}

}  // namespace annulus::cpu
