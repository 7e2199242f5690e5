#include <algorithm>
#include <cmath>

#include "kernels/cpu/plan/plain_op.h"

namespace annulus::cpu {
namespace {

// With s = bias + alpha / size * (the window's sum of squares): y = x s^-beta, and dx_c = dy_c s_c^-beta - 2 alpha beta
// / size x_c (sum over the windows w that contain c: dy_w x_w s_w^(-beta - 1)).
class LocalResponseNormOp : public PlainOp {
 public:
  LocalResponseNormOp(const LocalResponseNorm& operation, const TensorSpec& input)
      : PlainOp({input}, output_shape(operation, {input.shape})),
        o_(operation),
        batch_(input.shape[0]),
        channels_(input.shape[1]),
        pixels_(input.shape[2] * input.shape[3]),
        sums_(elements(input.shape)) {}

 private:
  // Calls body(channel's first element, window's first channel, end) for all channels. The window is `size` channels
  // from (size - 1) / 2 before the channel, as ONNX has it; `mirrored`: the windows that contain the channel.
  template <class Body>
  void for_each_channel(bool mirrored, const Body& body) const {
    const std::size_t before = mirrored ? o_.size / 2 : (o_.size - 1) / 2;
#pragma omp parallel for collapse(2) schedule(static)
    for (std::size_t n = 0; n < batch_; ++n)
      for (std::size_t c = 0; c < channels_; ++c) {
        const std::size_t begin = c > before ? c - before : 0, end = std::min(c - before + o_.size, channels_);
        body((n * channels_ + c) * pixels_, (n * channels_ + begin) * pixels_, (n * channels_ + end) * pixels_);
      }
  }

  void compute() override {
    const float factor = o_.alpha / static_cast<float>(o_.size);
    for_each_channel(false, [&](std::size_t at, std::size_t begin, std::size_t end) {
      for (std::size_t i = 0; i < pixels_; ++i) {
        float squares = 0;
        for (std::size_t k = begin + i; k < end; k += pixels_) squares += input(0)[k] * input(0)[k];
        const float s = o_.bias + factor * squares;
        sums_[at + i] = s;
        output()[at + i] = input(0)[at + i] * std::pow(s, -o_.beta);
      }
    });
  }

  void differentiate() override {
    const float factor = 2 * o_.alpha * o_.beta / static_cast<float>(o_.size);
    for_each_channel(true, [&](std::size_t at, std::size_t begin, std::size_t end) {
      for (std::size_t i = 0; i < pixels_; ++i) {
        float sum = 0;
        for (std::size_t k = begin + i; k < end; k += pixels_)
          sum += output_gradient()[k] * input(0)[k] * std::pow(sums_[k], -o_.beta - 1);
        input_gradient(0)[at + i] =
            output_gradient()[at + i] * std::pow(sums_[at + i], -o_.beta) - factor * input(0)[at + i] * sum;
      }
    });
  }

  LocalResponseNorm o_;
  std::size_t batch_, channels_, pixels_;
  std::vector<float> sums_;
};

}  // namespace

std::unique_ptr<Op> plan(const LocalResponseNorm& operation, const Specs& inputs, Mode, const Specs&) {
  return std::make_unique<LocalResponseNormOp>(operation, inputs[0]);
}

}  // namespace annulus::cpu
