#include "kernels/cuda/vendor/cudnn_convolution_graph.h"

#include <algorithm>
#include <array>
#include <deque>
#include <initializer_list>
#include <utility>

#include "kernels/base/tensor.h"
#include "kernels/cuda/runtime/layout.h"

namespace annulus::cuda {
namespace {

using cudnn::Descriptor;

// Returns extents in cuDNN's order: batch or filters, channels, height, width.
Shape extents(const ConvolutionProblem& p, Operand operand) {
  switch (operand) {
    case kInput:
    case kNormInput:
    case kAddend:
    case kNormOutput:
    case kGradientOfOthers:
      return {p.batch, p.channels, p.height, p.width};
    case kWeights:
      return {p.filters, p.channels, p.kernel.height, p.kernel.width};
    case kOutput:
      return {p.batch, p.filters, p.output_height(), p.output_width()};
    case kSums:
    case kSquares:
      return {1, p.filters, 1, 1};
    case kFactor:
      return {1, 1, 1, 1};
    default:
      return {1, p.channels, 1, 1};
  }
}

Descriptor channels_last_tensor(std::int64_t id, cudnnDataType_t type, const Shape& extents, cudnn::Place place) {
  std::array<std::int64_t, 4> sizes;
  std::ranges::copy(extents, sizes.begin());
  const auto [outer, channels, height, width] = sizes;
  const std::array<std::int64_t, 4> strides{height * width * channels, 1, width * channels, channels};
  return cudnn::tensor(id, type, sizes, strides, kVectorBytes, place);
}

Descriptor convolution(const ConvolutionProblem& problem) {
  constexpr std::int64_t kDimensions = 2;
  const auto both = [](const Extent& extent) {
    return std::array<std::int64_t, kDimensions>{static_cast<std::int64_t>(extent.height),
                                                 static_cast<std::int64_t>(extent.width)};
  };
  const Border& border = problem.padding;
  const auto before = both({border.top, border.left}), after = both({border.bottom, border.right});
  const auto stride = both(problem.stride), dilation = both(problem.dilation);
  Descriptor convolution(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  convolution.set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_DATA_FLOAT)
      .set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_CROSS_CORRELATION)
      .set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, kDimensions)
      .set_all<std::int64_t>(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, before)
      .set_all<std::int64_t>(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, after)
      .set_all<std::int64_t>(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, stride)
      .set_all<std::int64_t>(CUDNN_ATTR_CONVOLUTION_DILATIONS, dilation)
      .finalize();
  return convolution;
}

// Holds cuDNN's names for the parts of a pass's operation.
struct OperationNames {
  cudnnBackendDescriptorType_t type;
  cudnnBackendAttributeName_t convolution, product_factor, sum_factor, input, weights, output;
};

OperationNames operation_names(const ConvolutionProblem& problem) {
  if (problem.is<Forward>())
    return {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y};
  if (problem.is<BackwardData>())
    return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY};
  return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY};
}

class Builder {
 public:
  explicit Builder(const ConvolutionProblem& problem)
      : problem_(problem), values_(cudnn::data_type(problem.precision)) {}

  cudnn::Graph build() && {
    const OperationNames names = operation_names(problem_);
    Tensor input = problem_.normalizes()      ? normalized(stored(kInput))
                   : problem_.sums_gradient() ? intermediate()
                                              : stored(kInput);
    if (problem_.ends_block()) end_block(input);
    Tensor output = stored(kOutput);
    operations_.emplace_back(names.type)
        .set(names.input, input)
        .set(names.weights, stored(kWeights))
        .set(names.output, output)
        .set(names.convolution, parts_.emplace_back(convolution(problem_)))
        .set(names.product_factor, 1.0f)
        .set(names.sum_factor, problem_.is(BackwardData::added) ? 1.0f : 0.0f)
        .finalize();
    if (problem_.has_statistics()) add_statistics(output);
    if (problem_.sums_gradient()) add_gradient_sums(input);
    return cudnn::graph(std::move(parts_), std::move(operations_));
  }

 private:
  using Tensor = const Descriptor&;

  Tensor stored(Operand operand) {
    return tensor(operand, operand >= kSums ? CUDNN_DATA_FLOAT : values_, extents(problem_, operand),
                  cudnn::Place::device);
  }
  // Adds an intermediate value with the input's shape.
  Tensor intermediate() {
    return tensor(next_++, CUDNN_DATA_FLOAT, extents(problem_, kInput), cudnn::Place::intermediate);
  }
  Tensor tensor(std::int64_t id, cudnnDataType_t type, const Shape& extents, cudnn::Place place) {
    return parts_.emplace_back(channels_last_tensor(id, type, extents, place));
  }

  Tensor scaled_and_shifted(Tensor values) {
    Tensor scaled = pointwise(CUDNN_POINTWISE_MUL, {&values, &stored(kScale)});
    return pointwise(CUDNN_POINTWISE_ADD, {&scaled, &stored(kShift)});
  }

  Tensor normalized(Tensor input) {
    Tensor shifted = scaled_and_shifted(input);
    return pointwise(CUDNN_POINTWISE_RELU_FWD, {&shifted});
  }

  void end_block(Tensor input) {
    Tensor shifted = scaled_and_shifted(stored(kNormInput));
    Tensor sum = pointwise(CUDNN_POINTWISE_ADD, {&shifted, &stored(kAddend)});
    operations_.push_back(cudnn::pointwise_operation(function(CUDNN_POINTWISE_RELU_FWD), {&sum}, input));
  }

  Tensor pointwise(cudnnPointwiseMode_t mode, std::initializer_list<const Descriptor*> from) {
    Tensor to = intermediate();
    operations_.push_back(cudnn::pointwise_operation(function(mode), from, to));
    return to;
  }

  Tensor function(cudnnPointwiseMode_t mode) {
    Descriptor& function = parts_.emplace_back(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    function.set(CUDNN_ATTR_POINTWISE_MODE, mode).set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_DATA_FLOAT);
    // By default a ReLU turns NaN into 0, which would hide divergence.
    function.set(CUDNN_ATTR_POINTWISE_NAN_PROPAGATION, CUDNN_PROPAGATE_NAN).finalize();
    return function;
  }

  void add_statistics(Tensor output) {
    operations_.emplace_back(CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR)
        .set(CUDNN_ATTR_OPERATION_GENSTATS_MODE, CUDNN_GENSTATS_SUM_SQSUM)
        .set(CUDNN_ATTR_OPERATION_GENSTATS_MATH_PREC, CUDNN_DATA_FLOAT)
        .set(CUDNN_ATTR_OPERATION_GENSTATS_XDESC, output)
        .set(CUDNN_ATTR_OPERATION_GENSTATS_SUMDESC, stored(kSums))
        .set(CUDNN_ATTR_OPERATION_GENSTATS_SQSUMDESC, stored(kSquares))
        .finalize();
  }

  // cuDNN has plans for the batch norm's operations in this order only, and none for equivalent functions.
  void add_gradient_sums(Tensor computed) {
    Tensor values = stored(kNormInput), mean = stored(kMean), inverse = stored(kInverse), scale = stored(kNormScale);
    Tensor distance = pointwise(CUDNN_POINTWISE_SUB, {&values, &mean});
    Tensor normalized = pointwise(CUDNN_POINTWISE_MUL, {&distance, &inverse});
    Tensor scaled = pointwise(CUDNN_POINTWISE_MUL, {&normalized, &scale});
    Tensor shifted = pointwise(CUDNN_POINTWISE_ADD, {&scaled, &stored(kNormShift)});
    Tensor output_gradient = or_sum(computed, kGradientOfOthers), rectified = or_sum(shifted, kNormOutput);
    Tensor gradient = stored(kInput);
    operations_.emplace_back(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)
        .set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, function(CUDNN_POINTWISE_RELU_BWD))
        .set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, rectified)
        .set(CUDNN_ATTR_OPERATION_POINTWISE_DYDESC, output_gradient)
        .set(CUDNN_ATTR_OPERATION_POINTWISE_DXDESC, gradient)
        .finalize();
    operations_.emplace_back(CUDNN_BACKEND_OPERATION_BN_BWD_WEIGHTS_DESCRIPTOR)
        .set(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_MATH_PREC, CUDNN_DATA_FLOAT)
        .set(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_MEAN_DESC, mean)
        .set(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_INVSTD_DESC, inverse)
        .set(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_BN_SCALE_DESC, scale)
        .set(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_X_DESC, values)
        .set(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DY_DESC, gradient)
        .set(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DBN_SCALE_DESC, stored(kNormalizedSum))
        .set(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DBN_BIAS_DESC, stored(kGradientSum))
        .set(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_DY_SCALE_DESC, stored(kGradientFactor))
        .set(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_X_SCALE_DESC, stored(kValueFactor))
        .set(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_BIAS, stored(kConstant))
        .finalize();
  }

  // Returns the value, plus a stored operand if the pass adds elsewhere.
  Tensor or_sum(Tensor value, Operand more) {
    return problem_.adds_elsewhere() ? pointwise(CUDNN_POINTWISE_ADD, {&value, &stored(more)}) : value;
  }

  ConvolutionProblem problem_;
  cudnnDataType_t values_;
  std::deque<Descriptor> parts_;
  std::vector<Descriptor> operations_;
  std::int64_t next_ = kFirstIntermediate;
};

}  // namespace

std::vector<Operand> operands(const ConvolutionProblem& problem) {
  std::vector<Operand> all{kInput, kWeights, kOutput};
  if (problem.normalizes()) all.insert(all.end(), {kScale, kShift});
  if (problem.is_own()) all.insert(all.end(), {kNormInput, kScale, kShift});
  if (problem.ends_block()) all.insert(all.end(), {kNormInput, kScale, kShift, kAddend});
  if (problem.has_statistics()) all.insert(all.end(), {kSums, kSquares});
  if (problem.sums_gradient())
    all.insert(all.end(), {kNormInput, kMean, kInverse, kNormScale, kNormShift, kGradientSum, kNormalizedSum,
                           kGradientFactor, kValueFactor, kConstant});
  if (problem.adds_elsewhere()) all.insert(all.end(), {kNormOutput, kGradientOfOthers});
  if (problem.has_wide_weights()) all.push_back(kFactor);
  return all;
}

std::size_t bytes(const ConvolutionProblem& problem, Operand operand) {
  const bool wide = operand >= kSums || (operand == kWeights && problem.has_wide_weights()) ||
                    ((operand == kScale || operand == kShift) && problem.is_own());
  return elements(extents(problem, operand)) * size_of(wide ? DataType::f32 : value_type(problem.precision));
}

cudnn::Graph convolution_graph(const ConvolutionProblem& problem) {
  return Builder(problem).build();
}

}  // namespace annulus::cuda
