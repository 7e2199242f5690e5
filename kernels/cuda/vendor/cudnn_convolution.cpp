#include "kernels/cuda/vendor/cudnn_convolution.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <deque>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/base/median.h"
#include "kernels/base/random.h"
#include "kernels/cuda/runtime/layout.h"
#include "kernels/cuda/runtime/runtime.h"
#include "kernels/cuda/vendor/cudnn_tuning.h"
#include "kernels/cuda/vendor/weight_product.h"

namespace annulus::cuda {
namespace {

using Pass = ConvolutionProblem::Pass;
using cudnn::Descriptor, cudnn::EngineConfiguration;

// All operations of a device share one workspace of the largest size that any of them needs. Engines that need more
// than this are rarely the fastest, and not worth a smaller batch.
constexpr std::size_t kWorkspaceLimit = std::size_t{1} << 30;

// The tensors with an address at run time, by their ids in the graph. From kSums on, they are in float32.
enum Operand : std::int64_t {
  kInput = 1,
  kWeights,
  kOutput,
  kScale,
  kShift,
  kNormInput,
  kAddend,
  kNormOutput,
  kGradientOfOthers,
  kSums,
  kSquares,
  kMean,
  kInverse,
  kNormScale,
  kNormShift,
  kGradientSum,
  kNormalizedSum,
  kGradientFactor,
  kValueFactor,
  kConstant,
  kFactor,
  kFirstIntermediate
};

std::string_view name(Pass pass) {
  switch (pass) {
    case Pass::forward:
      return "forward";
    case Pass::backward_data:
      return "backward data";
    default:
      return "backward weights";
  }
}

void require_sound(const ConvolutionProblem& problem) {
  const std::size_t block = channel_block(value_type(problem.precision));
  const auto wrong = [&](std::string_view what) { fail("invalid {}: {}", to_string(problem), what); };
  const std::array sizes{problem.batch,        problem.channels,      problem.height,
                         problem.width,        problem.filters,       problem.kernel.height,
                         problem.kernel.width, problem.stride.area(), problem.dilation.area()};
  if (std::ranges::find(sizes, 0u) != sizes.end()) wrong("every size must be at least 1");
  if (problem.height + problem.padding.height() < problem.window_height() ||
      problem.width + problem.padding.width() < problem.window_width())
    wrong("the kernel is larger than the image with its padding");
  if (problem.channels % block != 0 || problem.filters % block != 0)
    wrong(fmt::format("channels and filters must be multiples of {}", block));
  if (problem.accumulate && problem.pass != Pass::backward_data) wrong("only backward data can add to its result");
  if (problem.fusion.normalized && problem.pass == Pass::backward_data) wrong("backward data does not read the input");
  if (problem.fusion.statistics && problem.pass != Pass::forward) wrong("only forward computes statistics");
  if (problem.fusion.ends_block && (problem.pass != Pass::forward || problem.fusion.normalized))
    wrong("only forward of an input that is not normalized ends a block");
  if (problem.fusion.gradient_sums && problem.pass != Pass::backward_data)
    wrong("only backward data computes gradient sums");
  if (problem.fusion.wide_weights &&
      (problem.pass != Pass::backward_weights || problem.fusion.normalized || !problem.is_product()))
    wrong("only backward weights of a 1x1 kernel, without other fusions, writes wide weights");
}

std::vector<Operand> operands(const ConvolutionProblem& problem) {
  std::vector<Operand> all{kInput, kWeights, kOutput};
  if (problem.fusion.normalized) all.insert(all.end(), {kScale, kShift});
  if (problem.fusion.ends_block) all.insert(all.end(), {kNormInput, kScale, kShift, kAddend});
  if (problem.fusion.statistics) all.insert(all.end(), {kSums, kSquares});
  if (problem.fusion.gradient_sums)
    all.insert(all.end(), {kNormInput, kMean, kInverse, kNormScale, kNormShift, kGradientSum, kNormalizedSum,
                           kGradientFactor, kValueFactor, kConstant});
  if (problem.adds_elsewhere()) all.insert(all.end(), {kNormOutput, kGradientOfOthers});
  if (problem.fusion.wide_weights) all.push_back(kFactor);
  return all;
}

std::vector<Operand> written_operands(const ConvolutionProblem& problem) {
  if (problem.pass == Pass::backward_weights) return {kWeights};
  std::vector<Operand> all{problem.pass == Pass::forward ? kOutput : kInput};
  if (problem.fusion.ends_block) all.push_back(kInput);
  if (problem.fusion.statistics) all.insert(all.end(), {kSums, kSquares});
  if (problem.fusion.gradient_sums) all.insert(all.end(), {kGradientSum, kNormalizedSum});
  return all;
}

void* address(const ConvolutionOperands& operands, Operand operand) {
  switch (operand) {
    case kInput:
      return operands.input;
    case kWeights:
      return operands.weights;
    case kOutput:
      return operands.output;
    case kScale:
      return operands.scale;
    case kShift:
      return operands.shift;
    case kNormInput:
      return operands.norm_input;
    case kAddend:
      return operands.addend;
    case kNormOutput:
      return operands.norm_output;
    case kGradientOfOthers:
      return operands.gradient_of_others;
    case kSums:
      return operands.sums;
    case kSquares:
      return operands.squares;
    case kMean:
      return operands.norm.mean;
    case kInverse:
      return operands.norm.inverse;
    case kNormScale:
      return operands.norm.scale;
    case kNormShift:
      return operands.norm.shift;
    case kGradientSum:
      return operands.norm.sum;
    case kNormalizedSum:
      return operands.norm.normalized_sum;
    case kGradientFactor:
      return operands.norm.gradient_factor;
    case kValueFactor:
      return operands.norm.value_factor;
    default:
      return operands.norm.constant;
  }
}

// In cuDNN's order: batch or filters, channels, height, width.
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

std::size_t bytes(const ConvolutionProblem& problem, Operand operand) {
  const bool wide = operand >= kSums || (operand == kWeights && problem.fusion.wide_weights);
  return elements(extents(problem, operand)) * size_of(wide ? DataType::f32 : value_type(problem.precision));
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

// cuDNN's names for the parts of a pass's operation.
struct OperationNames {
  cudnnBackendDescriptorType_t type;
  cudnnBackendAttributeName_t convolution, product_factor, sum_factor, input, weights, output;
};

OperationNames operation_names(Pass pass) {
  switch (pass) {
    case Pass::forward:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y};
    case Pass::backward_data:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY};
    default:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY};
  }
}

class Builder {
 public:
  explicit Builder(const ConvolutionProblem& problem)
      : problem_(problem), values_(cudnn::data_type(problem.precision)) {}

  cudnn::Graph build() && {
    const OperationNames names = operation_names(problem_.pass);
    Tensor input = problem_.fusion.normalized      ? normalized(stored(kInput))
                   : problem_.fusion.gradient_sums ? intermediate()
                                                   : stored(kInput);
    if (problem_.fusion.ends_block) end_block(input);
    Tensor output = stored(kOutput);
    operations_.emplace_back(names.type)
        .set(names.input, input)
        .set(names.weights, stored(kWeights))
        .set(names.output, output)
        .set(names.convolution, parts_.emplace_back(convolution(problem_)))
        .set(names.product_factor, 1.0f)
        .set(names.sum_factor, problem_.accumulate && !problem_.adds_elsewhere() ? 1.0f : 0.0f)
        .finalize();
    if (problem_.fusion.statistics) add_statistics(output);
    if (problem_.fusion.gradient_sums) add_gradient_sums(input);
    return cudnn::graph(std::move(parts_), std::move(operations_));
  }

 private:
  using Tensor = const Descriptor&;

  Tensor stored(Operand operand) {
    return tensor(operand, operand >= kSums ? CUDNN_DATA_FLOAT : values_, extents(problem_, operand),
                  cudnn::Place::device);
  }
  // A value of the input's shape.
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
    function.set(CUDNN_ATTR_POINTWISE_MODE, mode).set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_DATA_FLOAT).finalize();
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

  // cuDNN's plans are for this order of the batch norm's operations only. Other functions of the same values have none.
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

  // Returns the value or, if the pass adds elsewhere, its sum with a stored operand.
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

std::string to_string(const ConvolutionProblem& p) {
  const auto text = [](const Extent& extent) {
    return extent.square() ? fmt::format("{}", extent.height) : fmt::format("{} x {}", extent.height, extent.width);
  };
  const Border& border = p.padding;
  std::string padding = text({border.top, border.left});
  if (!border.symmetric()) padding += " to " + text({border.bottom, border.right});
  const std::string dilation = p.dilation == 1 ? "" : ", dilation " + text(p.dilation);
  const ConvolutionFusion& fusion = p.fusion;
  return fmt::format(
      "{} convolution{}{}{}{}{}{} in {}, {} x {} x {} x {} by {} filters of {} x {}, stride {}, padding {}{}",
      name(p.pass), p.accumulate ? " (added)" : "", fusion.normalized ? " of a normalized input" : "",
      fusion.ends_block ? " that ends a block" : "", fusion.statistics ? " with statistics" : "",
      fusion.gradient_sums ? " with gradient sums" : "", fusion.wide_weights ? " to float32" : "",
      to_string(p.precision), p.batch, p.height, p.width, p.channels, p.filters, p.kernel.height, p.kernel.width,
      text(p.stride), padding, dilation);
}

cudnn::Graph convolution_graph(const ConvolutionProblem& problem) {
  return Builder(problem).build();
}

namespace {

// A graph with an engine that computes it.
struct Built {
  ConvolutionProblem problem;
  std::shared_ptr<const cudnn::Graph> graph;
  EngineConfiguration configuration;
  Descriptor plan;
};
using BuiltPointer = std::shared_ptr<const Built>;

class Plan final : public CudnnConvolutionPlan {
 public:
  Plan(std::shared_ptr<const cudnn::Handle> handle, BuiltPointer built)
      : handle_(std::move(handle)), built_(std::move(built)) {
    for (const Operand operand : operands(built_->problem)) ids_.push_back(operand);
    addresses_.resize(ids_.size() + 1);
  }

  std::size_t workspace_bytes() const override { return cudnn::workspace_bytes(built_->plan); }
  const EngineConfiguration& configuration() const override { return built_->configuration; }

  void run(const ConvolutionOperands& operands, void* workspace, cudaStream_t stream) override {
    if (!*handle_) fail("a {} that was planned for another machine's GPU cannot run", to_string(built_->problem));
    try {
      bind(operands, workspace);
      cudnn::check(cudnnSetStream(handle_->get(), stream));
      cudnn::check(cudnnBackendExecute(handle_->get(), built_->plan.handle(), pack_->handle()));
    } catch (const Error& error) {
      fail("a {} does not run: {}", to_string(built_->problem), error.what());
    }
  }

 private:
  void bind(const ConvolutionOperands& operands, void* workspace) {
    bool same = pack_.has_value();
    const auto set = [&](std::size_t i, void* address) {
      same = std::exchange(addresses_[i], address) == address && same;
    };
    for (std::size_t i = 0; i < ids_.size(); ++i) set(i, address(operands, static_cast<Operand>(ids_[i])));
    set(ids_.size(), workspace);
    if (same) return;  // they are the same in every step
    pack_.reset();     // if the next line throws
    pack_.emplace(cudnn::variant_pack(ids_, std::span(addresses_).first(ids_.size()), workspace));
  }

  std::shared_ptr<const cudnn::Handle> handle_;
  BuiltPointer built_;
  std::vector<std::int64_t> ids_;
  std::optional<Descriptor> pack_;
  std::vector<void*> addresses_;  // of the operands and the workspace
};

// Measures work on the current device.
class Stopwatch {
 public:
  // Returns the median time of a few runs of work(stream), in microseconds. If the first run takes far longer than
  // `least`, returns its time.
  template <class Work>
  double measure(const Work& work, double least = std::numeric_limits<double>::infinity()) {
    constexpr int kRuns = 5;
    constexpr double kHopeless = 2;
    work(stream());  // the first run loads the kernels, and may compile them
    std::vector<double> times{time(work)};
    if (times[0] > kHopeless * least) return times[0];
    while (times.size() < kRuns) times.push_back(time(work));
    return median(times);
  }

  cudaStream_t stream() const { return stream_.get(); }

 private:
  template <class Work>
  double time(const Work& work) {
    check(cudaEventRecord(begin_.get(), stream()));
    work(stream());
    check(cudaEventRecord(end_.get(), stream()));
    check(cudaEventSynchronize(end_.get()));
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin_.get(), end_.get()));
    return 1e3 * static_cast<double>(milliseconds);
  }

  Stream stream_ = make_stream();
  Event begin_ = make_timed_event(), end_ = make_timed_event();
};

// Memory to measure a problem on.
class Scratch {
 public:
  explicit Scratch(const ConvolutionProblem& problem) : written_(written_operands(problem)) {
    const std::vector<std::uint16_t> pattern = small_numbers();
    for (const Operand operand : operands(problem)) {
      const DeviceView view = (memory_[operand] = allocate_device(bytes(problem, operand))).view();
      for (std::size_t at = 0; at < view.bytes; at += std::span(pattern).size_bytes())
        check(cudaMemcpy(view.address + at, pattern.data(), std::min(view.bytes - at, std::span(pattern).size_bytes()),
                         cudaMemcpyHostToDevice));
    }
    check(cudaDeviceSynchronize());  // other streams do not wait for these copies
  }

  double measure(ConvolutionPlan& plan, double least = std::numeric_limits<double>::infinity()) {
    if (workspace_.view().bytes < plan.workspace_bytes()) workspace_ = allocate_device(plan.workspace_bytes());
    return stopwatch_.measure([&](cudaStream_t stream) { plan.run(addresses(), workspace_.view().address, stream); },
                              least);
  }

  // Whether the results of two runs are bit-identical. REQUIRES: the plan was measured.
  bool repeats(Plan& plan) {
    const auto results = [&] {
      plan.run(addresses(), workspace_.view().address, stopwatch_.stream());
      check(cudaStreamSynchronize(stopwatch_.stream()));
      std::vector<std::byte> all;
      for (const Operand operand : written_) {
        const DeviceView view = memory_.at(operand).view();
        all.resize(all.size() + view.bytes);
        check(cudaMemcpy(all.data() + all.size() - view.bytes, view.address, view.bytes, cudaMemcpyDeviceToHost));
      }
      return all;
    };
    return results() == results();
  }

 private:
  // Positive and negative ones, of either 16-bit type. (A GPU needs less power for multiplying equal numbers, so it
  // would be faster.)
  static std::vector<std::uint16_t> small_numbers() {
    std::vector<std::uint16_t> numbers(std::size_t{1} << 19);
    for (std::size_t i = 0; i < numbers.size(); ++i)
      numbers[i] = static_cast<std::uint16_t>(0x2c00 | (mix(i) & 0x83ff));
    return numbers;
  }

  ConvolutionOperands addresses() {
    const auto of = [this](Operand operand) { return memory_[operand].view().address; };
    const auto floats = [&](Operand operand) { return reinterpret_cast<float*>(of(operand)); };
    const NormGradient norm{floats(kMean),           floats(kInverse),     floats(kNormScale),
                            floats(kNormShift),      floats(kGradientSum), floats(kNormalizedSum),
                            floats(kGradientFactor), floats(kValueFactor), floats(kConstant)};
    return {of(kInput),     of(kWeights),    of(kOutput),           of(kScale),
            of(kShift),     of(kSums),       of(kSquares),          of(kNormInput),
            of(kAddend),    of(kNormOutput), of(kGradientOfOthers), norm,
            floats(kFactor)};
  }

  Stopwatch stopwatch_;
  std::vector<Operand> written_;
  std::map<Operand, Buffer> memory_;
  Buffer workspace_;
};

class Planner final : public ConvolutionPlanner {
 public:
  Planner(cudnn::Handle handle, Descriptor device, std::optional<ConvolutionTuning> tuning)
      : handle_(std::make_shared<cudnn::Handle>(std::move(handle))),
        device_(std::move(device)),
        tuning_(std::move(tuning)) {}

  std::unique_ptr<ConvolutionPlan> plan(const ConvolutionProblem& problem) override {
    require_sound(problem);
    if (problem.fusion.wide_weights) return product(problem);
    BuiltPointer& built = built_[to_string(problem)];
    if (!built) built = tuning_ ? tuned(problem) : usable(problem, 1).front();
    return std::make_unique<Plan>(handle_, built);
  }

  ConvolutionFusion choose_fusion(const ConvolutionProblem& problem, const ConvolutionFusion& possible) override {
    if (!tuning_) return {};
    ConvolutionFusion all = possible;
    all.wide_weights = false;
    all.gradient_sums = possible.gradient_sums && gradient_sums_are_faster(problem);
    all.ends_block = possible.ends_block && all.gradient_sums;  // else backward needs the bits of the ReLU
    const auto cost = [&](const ConvolutionFusion& fusion) { return step_microseconds(problem, all, fusion); };
    const std::array choices{ConvolutionFusion{}, ConvolutionFusion{.statistics = possible.statistics}, all};
    ConvolutionFusion fusion = std::ranges::min(choices, {}, cost);
    fusion.gradient_sums = all.gradient_sums;
    fusion.wide_weights = possible.wide_weights && !fusion.normalized && wide_weights_are_faster(problem);
    return fusion;
  }

 private:
  // Returns up to `most` usable plans, probably the fastest first. Throws Error if there is none.
  std::vector<BuiltPointer> usable(const ConvolutionProblem& problem, std::size_t most) const {
    const auto graph = std::make_shared<const cudnn::Graph>(convolution_graph(problem));
    std::vector<BuiltPointer> all;
    std::set<std::string> objections;
    const auto attempt = [&](const auto& action) {
      try {
        action();
      } catch (const Error& error) {
        objections.insert(error.what());
      }
    };
    for (const auto mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {  // mode B gives the same answers as A
      attempt([&] {
        for (EngineConfiguration& configuration : cudnn::configurations(*graph, device_, mode))
          if (all.size() < most) attempt([&] { all.push_back(build(graph, std::move(configuration), problem)); });
      });
      if (!all.empty()) return all;
    }
    fail("cuDNN {} has no plan for a {}: choose another precision or batch size ({})", cudnnGetVersion(),
         to_string(problem), objections.empty() ? "no engine found" : fmt::format("{}", fmt::join(objections, "; ")));
  }

  // Throws Error if the engine does not support the problem or must not be used for it.
  BuiltPointer build(std::shared_ptr<const cudnn::Graph> graph, EngineConfiguration configuration,
                     const ConvolutionProblem& problem) const {
    const auto engine = configuration.choice.engine;
    if (const std::string why = cudnn::objection(configuration, problem.precision); !why.empty())
      fail("engine {}: {}", engine, why);
    Descriptor plan = cudnn::execution_plan(configuration, device_, *handle_ ? handle_->get() : nullptr);
    const std::size_t bytes = cudnn::workspace_bytes(plan);
    if (bytes > kWorkspaceLimit) fail("engine {}: it needs a workspace of {} bytes", engine, bytes);
    return std::make_shared<const Built>(Built{problem, std::move(graph), std::move(configuration), std::move(plan)});
  }

  // The time of forward and backward_weights with the fusion. What is possible and not fused costs a pass of a batch
  // norm: the one before the convolution reads and writes the input, at the end of a block reads another value for each
  // of the input's, and the one after it reads the output. Each takes at least half the time of a copy.
  double step_microseconds(const ConvolutionProblem& problem, const ConvolutionFusion& possible,
                           const ConvolutionFusion& fusion) {
    ConvolutionProblem fused = problem;
    fused.fusion = fusion;
    double sum = microseconds(fused.with(Pass::forward));
    if (possible.normalized) sum += microseconds(fused.with(Pass::backward_weights));
    if (possible.normalized && !fusion.normalized) sum += copy_microseconds(bytes(problem, kInput));
    if (possible.ends_block && !fusion.ends_block) sum += 1.5 * copy_microseconds(bytes(problem, kInput));
    if (possible.statistics && !fusion.statistics) sum += copy_microseconds(bytes(problem, kOutput)) / 2;
    return sum;
  }

  // Apart, a pass of the batch norm reads two values for each of the input's, which takes at least the time of a copy.
  // At the end of a block the pass after it also writes the addend's gradient, which then differs from the output's.
  bool gradient_sums_are_faster(const ConvolutionProblem& problem) {
    ConvolutionProblem fused = problem;
    fused.fusion = {.gradient_sums = true};
    const double copies = problem.accumulate ? 1.5 : 1;
    return microseconds(fused.with(Pass::backward_data)) <
           microseconds(problem.with(Pass::backward_data)) + copies * copy_microseconds(bytes(problem, kInput));
  }

  // Apart, a pass reads the gradient in 16 bits and writes it in 32: as many bytes as a copy of one and a half.
  bool wide_weights_are_faster(const ConvolutionProblem& problem) {
    ConvolutionProblem fused = problem;
    fused.fusion = {.wide_weights = true};
    return product_microseconds(fused.with(Pass::backward_weights)) <
           microseconds(problem.with(Pass::backward_weights)) + copy_microseconds(bytes(problem, kWeights) / 2 * 3);
  }

  // Infinity if it cannot be computed.
  double product_microseconds(const ConvolutionProblem& problem) {
    const std::string name = to_string(problem);
    if (!tuning_->find(name)) {
      expect_gpu(name);
      try {
        const auto plan = product(problem);
        tuning_->add(name, {.microseconds = Scratch(problem).measure(*plan)});
      } catch (const Error&) {
        tuning_->add(name, {});
      }
    }
    return tuning_->find(name)->microseconds;
  }

  std::unique_ptr<ConvolutionPlan> product(const ConvolutionProblem& problem) {
    if (!*handle_) fail("a {} can be planned only for a GPU that is on this machine", to_string(problem));
    if (!matmuls_) matmuls_ = make_matmul_planner();
    return plan_weight_product(problem, *matmuls_);
  }

  // Infinity if no plan is usable.
  double microseconds(const ConvolutionProblem& problem) {
    const std::string name = to_string(problem);
    if (!tuning_->find(name)) {
      try {
        measured(problem);
      } catch (const Error&) {
        if (!*handle_) throw;
        tuning_->add(name, {});
      }
    }
    return tuning_->find(name)->microseconds;
  }

  double copy_microseconds(std::size_t bytes) {
    const std::string name = fmt::format("copy of {} bytes", bytes);
    if (!tuning_->find(name)) {
      expect_gpu(name);
      const Buffer from = allocate_device(bytes), to = allocate_device(bytes);
      tuning_->add(
          name, {.microseconds = Stopwatch().measure([&](cudaStream_t stream) {
            check(cudaMemcpyAsync(to.view().address, from.view().address, bytes, cudaMemcpyDeviceToDevice, stream));
          })});
    }
    return tuning_->find(name)->microseconds;
  }

  void expect_gpu(const std::string& name) const {
    if (!*handle_)
      fail("{} has no entry for a {}, and there is no GPU here to measure on", tuning_->file().string(), name);
  }

  // The tuning file's choice, or one measured now.
  BuiltPointer tuned(const ConvolutionProblem& problem) {
    const std::string name = to_string(problem);
    const auto known = tuning_->find(name);
    if (!known || !known->choice) return measured(problem);
    const auto graph = std::make_shared<const cudnn::Graph>(convolution_graph(problem));
    try {
      return build(graph, cudnn::configuration(*graph, device_, *known->choice), problem);
    } catch (const Error& error) {
      fail("{}: {} is not usable for a {} ({}): delete the file to measure again", tuning_->file().string(),
           to_string(*known->choice), name, error.what());
    }
  }

  BuiltPointer measured(const ConvolutionProblem& problem) {
    expect_gpu(to_string(problem));
    Scratch scratch(problem);
    BuiltPointer best;
    double least = std::numeric_limits<double>::infinity();
    std::string objection;
    for (const BuiltPointer& built : usable(problem, std::numeric_limits<std::size_t>::max())) {
      try {
        Plan plan(handle_, built);
        const double microseconds = scratch.measure(plan, least);
        if (microseconds >= least) continue;
        // The engines of fused passes have no note of it.
        if (problem.fusion.any() && !scratch.repeats(plan)) fail("its sums differ from run to run");
        least = microseconds;
        best = built;
      } catch (const Error& error) {  // a plan does not run, or there is not enough memory for its workspace
        objection = error.what();
      }
    }
    if (!best) fail("none of cuDNN's plans for a {} can be measured ({})", to_string(problem), objection);
    tuning_->add(to_string(problem), {best->configuration.choice, least});
    return best;
  }

  std::shared_ptr<const cudnn::Handle> handle_;  // null inside if the GPU is not on this machine
  Descriptor device_;
  std::unique_ptr<MatmulPlanner> matmuls_;  // null until it is needed
  std::optional<ConvolutionTuning> tuning_;
  std::map<std::string, BuiltPointer> built_;  // a network has many equal layers
};

std::optional<ConvolutionTuning> open_tuning(const std::filesystem::path& file, const std::string& device) {
  if (file.empty()) return {};
  return ConvolutionTuning(file, fmt::format("{}, cuDNN {}", device, cudnnGetVersion()));
}

std::string current_device_name() {
  int device = 0;
  cudaDeviceProp properties{};
  check(cudaGetDevice(&device));
  check(cudaGetDeviceProperties(&properties, device));
  return properties.name;
}

}  // namespace

std::unique_ptr<ConvolutionPlanner> make_convolution_planner(const std::filesystem::path& tuning) {
  cudnn::Handle handle = cudnn::make_handle();
  Descriptor device = cudnn::device_properties(handle.get());
  return std::make_unique<Planner>(std::move(handle), std::move(device), open_tuning(tuning, current_device_name()));
}

std::unique_ptr<ConvolutionPlanner> make_convolution_planner_for(const std::string& device_properties_json,
                                                                 const std::filesystem::path& tuning) {
  const auto json = nlohmann::json::parse(device_properties_json, nullptr, false);
  if (!json.is_object()) fail("the properties of the GPU to plan for are not a JSON object");
  return std::make_unique<Planner>(nullptr, cudnn::device_properties(device_properties_json),
                                   open_tuning(tuning, json.value("deviceName", "unknown GPU")));
}

}  // namespace annulus::cuda
