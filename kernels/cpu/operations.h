#pragma once

#include <memory>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/device.h"

namespace annulus::cpu {

// One factory for each operation; see Device::plan.
using Specs = std::vector<TensorSpec>;

std::unique_ptr<Op> plan(const ImageInput& operation, const Specs& inputs, Mode mode, const Specs& parameters);
std::unique_ptr<Op> plan(const Convolution& operation, const Specs& inputs, Mode mode, const Specs& parameters);
std::unique_ptr<Op> plan(const Dense& operation, const Specs& inputs, Mode mode, const Specs& parameters);
std::unique_ptr<Op> plan(const MaxPool& operation, const Specs& inputs, Mode mode, const Specs& parameters);
std::unique_ptr<Op> plan(const AveragePool& operation, const Specs& inputs, Mode mode, const Specs& parameters);
std::unique_ptr<Op> plan(const AdaptiveAveragePool& operation, const Specs& inputs, Mode mode, const Specs& parameters);
std::unique_ptr<Op> plan(const BatchNorm& operation, const Specs& inputs, Mode mode, const Specs& parameters);
std::unique_ptr<Op> plan(const Relu& operation, const Specs& inputs, Mode mode, const Specs& parameters);
std::unique_ptr<Op> plan(const Add& operation, const Specs& inputs, Mode mode, const Specs& parameters);
std::unique_ptr<Op> plan(const Concat& operation, const Specs& inputs, Mode mode, const Specs& parameters);
std::unique_ptr<Op> plan(const Dropout& operation, const Specs& inputs, Mode mode, const Specs& parameters);
std::unique_ptr<Op> plan(const SoftmaxCrossEntropy& operation, const Specs& inputs, Mode mode, const Specs& parameters);

template <class Unsupported>
std::unique_ptr<Op> plan(const Unsupported& operation, const Specs&, Mode, const Specs&) {
  fail("CPUs do not support the operation {} yet", name(Operation(operation)));
}

}  // namespace annulus::cpu
