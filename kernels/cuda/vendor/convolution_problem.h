#pragma once

#include <cstddef>
#include <string>
#include <variant>

#include "kernels/base/extent.h"
#include "kernels/precision.h"

namespace annulus::cuda {

// A convolution's passes. While a pass has values in registers, it can also do the work of other passes over memory:
// for the batch norms beside the convolution, and for the weights' gradient.
struct Forward {
  enum Input {
    stored,
    normalized,  // max(0, scale x + shift), x the stored values, rounded to the value type
    block_end,   // max(0, scale x + shift + addend), as at the end of a residual block; also written for other readers
  };

  Input input = stored;
  bool statistics = false;  // also sums, per filter, the output's values and squares

  bool operator==(const Forward&) const = default;
};

enum class BackwardData {
  written,  // the input's gradient
  added,    // to the content
  // For an input that a batch norm with a ReLU wrote. Writes the gradient before the ReLU, instead of the input's
  // gradient, and that gradient's sums per channel (NormGradient).
  summed,
  // Like `summed`, after adding a gradient in other memory. The input's values show where the ReLU was active: so the
  // batch norm may end a residual block, which adds before the ReLU.
  summed_elsewhere,
};

enum class BackwardWeights {
  rounded,        // to the value type
  of_normalized,  // like `rounded`, for a Forward::normalized input
  wide,  // in float32, multiplied by a factor, and not rounded before; only if the pass is_product() or has groups
};

using ConvolutionPass = std::variant<Forward, BackwardData, BackwardWeights>;

// Describes a convolution pass over tensors in NHWC order, weights in {filters, rows, columns, channels}, all dense and
// in the precision's value type, channels a multiple of the number that 16 bytes hold. Sums are computed in float32.
struct ConvolutionProblem {
  ConvolutionPass pass;
  Precision precision;
  std::size_t batch, channels, height, width;  // the input's
  std::size_t filters;
  Extent kernel;
  Extent stride;
  Border padding;
  Extent dilation = 1;
  // Whether the fused forward and backward_data passes are our own products (plan_own_product()) instead of cuDNN's.
  bool own_products = false;

  // Returns the same layer's problem for another pass.
  ConvolutionProblem with(const ConvolutionPass& other) const {
    ConvolutionProblem changed = *this;
    changed.pass = other;
    return changed;
  }

  template <class Pass>
  bool is() const {
    return std::holds_alternative<Pass>(pass);
  }
  bool is(const ConvolutionPass& other) const { return pass == other; }

  // What the pass does besides.
  bool normalizes() const { return takes(Forward::normalized) || is(BackwardWeights::of_normalized); }
  bool ends_block() const { return takes(Forward::block_end); }
  bool has_statistics() const { return is<Forward>() && std::get<Forward>(pass).statistics; }
  bool sums_gradient() const { return is(BackwardData::summed) || adds_elsewhere(); }
  bool adds_elsewhere() const { return is(BackwardData::summed_elsewhere); }
  bool has_wide_weights() const { return is(BackwardWeights::wide); }
  bool is_fused() const { return normalizes() || ends_block() || has_statistics() || sums_gradient(); }

  bool is_own() const { return own_products && is_fused() && !is<BackwardWeights>(); }

  // Returns whether the passes are matrix products, with a row per pixel of all images.
  bool is_product() const { return kernel == 1 && stride == 1 && padding == 0; }

  // Return a window's size.
  std::size_t window_height() const { return dilation.height * (kernel.height - 1) + 1; }
  std::size_t window_width() const { return dilation.width * (kernel.width - 1) + 1; }

  std::size_t output_height() const { return (height + padding.height() - window_height()) / stride.height + 1; }
  std::size_t output_width() const { return (width + padding.width() - window_width()) / stride.width + 1; }

 private:
  bool takes(Forward::Input input) const { return is<Forward>() && std::get<Forward>(pass).input == input; }
};

// "forward convolution in bf16, 256 x 56 x 56 x 64 by 64 filters of 3 x 3, stride 1, padding 1"; if the padding of rows
// and columns differs: "padding 0 x 3". Tuning files name problems so.
std::string to_string(const ConvolutionProblem& problem);

// Throws Error if the sizes do not fit each other or the precision.
void require_sound(const ConvolutionProblem& problem);

}  // namespace annulus::cuda
