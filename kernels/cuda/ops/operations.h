#pragma once

#include <memory>
#include <vector>

#include "kernels/cuda/ops/context.h"
#include "kernels/cuda/ops/limits.h"
#include "kernels/device.h"

namespace annulus::cuda {

// One factory for each operation; see Device::plan. Values are in channels-last layout (layout.h), their gradients have
// the values' type, and gradients of parameters are float32. Gradients of values are those of the loss times
// *context.loss_scale; parameters' gradients are multiplied by *context.unscale to remove it.
using Specs = std::vector<TensorSpec>;

std::unique_ptr<Op> plan(const ImageInput& operation, const Specs& inputs, Mode mode, Context& context);
std::unique_ptr<Op> plan(const Convolution& operation, const Specs& inputs, Mode mode, Context& context);
std::unique_ptr<Op> plan(const Dense& operation, const Specs& inputs, Mode mode, Context& context);
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

// The operations that have no kernel yet: throws Error.
template <class Unsupported>
std::unique_ptr<Op> plan(const Unsupported& operation, const Specs&, Mode, Context&) {
  refuse(name(Operation(operation)));
}

// Does nothing in a step in which *context.skip is not 0.
std::unique_ptr<Update> plan_update(const UpdateRule& rule, const UpdateArenas& arenas,
                                    const std::vector<UpdateSegment>& segments, Context& context);

}  // namespace annulus::cuda
