#pragma once

#include <memory>
#include <vector>

#include "kernels/cuda/ops/loops/context.h"
#include "kernels/cuda/ops/loops/limits.h"
#include "kernels/device.h"

namespace annulus::cuda {

using Specs = std::vector<TensorSpec>;

// Plans any operation; see Device::plan. Moves inputs in another layout than the operation needs to the scratch.
std::unique_ptr<Op> plan_any(const Operation& operation, const Specs& inputs, Mode mode, Context& context);

// Plan each operation. Values are in channels-last layout (layout.h), with channels as plan_any() arranges. Values'
// gradients have the values' type, and are scaled by *context.loss_scale. Parameters' gradients are float32, and
// multiplied by *context.unscale to remove that factor.
std::unique_ptr<Op> plan(const ImageInput& operation, const Specs& inputs, Mode mode, Context& context);
std::unique_ptr<Op> plan(const Convolution& operation, const Specs& inputs, Mode mode, Context& context);
std::unique_ptr<Op> plan(const Dense& operation, const Specs& inputs, Mode mode, Context& context);
std::unique_ptr<Op> plan(const Maximum& operation, const Specs& inputs, Mode mode, Context& context);
std::unique_ptr<Op> plan(const MaxPool& operation, const Specs& inputs, Mode mode, Context& context);
std::unique_ptr<Op> plan(const AveragePool& operation, const Specs& inputs, Mode mode, Context& context);
std::unique_ptr<Op> plan(const AdaptiveAveragePool& operation, const Specs& inputs, Mode mode, Context& context);
std::unique_ptr<Op> plan(const BatchNorm& operation, const Specs& inputs, Mode mode, Context& context);
std::unique_ptr<Op> plan(const Relu& operation, const Specs& inputs, Mode mode, Context& context);
std::unique_ptr<Op> plan(const Add& operation, const Specs& inputs, Mode mode, Context& context);
std::unique_ptr<Op> plan(const Concat& operation, const Specs& inputs, Mode mode, Context& context);
std::unique_ptr<Op> plan(const Dropout& operation, const Specs& inputs, Mode mode, Context& context);
std::unique_ptr<Op> plan(const SoftmaxCrossEntropy& operation, const Specs& inputs, Mode mode, Context& context);
std::unique_ptr<Op> plan(const BinaryCrossEntropy& operation, const Specs& inputs, Mode mode, Context& context);
std::unique_ptr<Op> plan(const MultiLabelCrossEntropy& operation, const Specs& inputs, Mode mode, Context& context);
std::unique_ptr<Op> plan(const MeanSquaredError& operation, const Specs& inputs, Mode mode, Context& context);

std::unique_ptr<Op> plan(const Linear& operation, const Specs& inputs, Mode mode, Context& context);
std::unique_ptr<Op> plan(const Activation& operation, const Specs& inputs, Mode mode, Context& context);
std::unique_ptr<Op> plan(const Arithmetic& operation, const Specs& inputs, Mode mode, Context& context);
std::unique_ptr<Op> plan(const MatrixProduct& operation, const Specs& inputs, Mode mode, Context& context);
std::unique_ptr<Op> plan(const Attention& operation, const Specs& inputs, Mode mode, Context& context);
std::unique_ptr<Op> plan(const LayerNorm& operation, const Specs& inputs, Mode mode, Context& context);
std::unique_ptr<Op> plan(const Softmax& operation, const Specs& inputs, Mode mode, Context& context);
std::unique_ptr<Op> plan(const Mean& operation, const Specs& inputs, Mode mode, Context& context);
std::unique_ptr<Op> plan(const Expand& operation, const Specs& inputs, Mode mode, Context& context);
std::unique_ptr<Op> plan(const Reshape& operation, const Specs& inputs, Mode mode, Context& context);
std::unique_ptr<Op> plan(const Transpose& operation, const Specs& inputs, Mode mode, Context& context);
std::unique_ptr<Op> plan(const Slice& operation, const Specs& inputs, Mode mode, Context& context);
std::unique_ptr<Op> plan(const Pad& operation, const Specs& inputs, Mode mode, Context& context);
std::unique_ptr<Op> plan(const Gather& operation, const Specs& inputs, Mode mode, Context& context);
std::unique_ptr<Op> plan(const Learned& operation, const Specs& inputs, Mode mode, Context& context);
std::unique_ptr<Op> plan(const Constant& operation, const Specs& inputs, Mode mode, Context& context);
std::unique_ptr<Op> plan(const ComputedWeights& operation, const Specs& inputs, Mode mode, Context& context);
std::unique_ptr<Op> plan(const TransposedConvolution& operation, const Specs& inputs, Mode mode, Context& context);
std::unique_ptr<Op> plan(const PRelu& operation, const Specs& inputs, Mode mode, Context& context);
std::unique_ptr<Op> plan(const Resize& operation, const Specs& inputs, Mode mode, Context& context);
std::unique_ptr<Op> plan(const LocalResponseNorm& operation, const Specs& inputs, Mode mode, Context& context);
std::unique_ptr<Op> plan(const CachedAttention& operation, const Specs& inputs, Mode mode, Context& context);
std::unique_ptr<Op> plan(const TokenEmbedding& operation, const Specs& inputs, Mode mode, Context& context);
std::unique_ptr<Op> plan(const PositionEmbedding& operation, const Specs& inputs, Mode mode, Context& context);
std::unique_ptr<Op> plan(const LanguageModelHead& operation, const Specs& inputs, Mode mode, Context& context);
std::unique_ptr<Op> plan(const GroupNorm& operation, const Specs& inputs, Mode mode, Context& context);

// Does nothing in a step in which *context.skip is not 0.
std::unique_ptr<Update> plan_update(const UpdateRule& rule, const UpdateArenas& arenas,
                                    const std::vector<UpdateSegment>& segments, Context& context);

}  // namespace annulus::cuda
