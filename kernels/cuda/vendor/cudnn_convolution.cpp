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
#include "kernels/cuda/runtime/layout.h"
#include "kernels/cuda/runtime/runtime.h"
#include "kernels/cuda/vendor/cudnn_tuning.h"

namespace annulus::cuda {
namespace {

using Pass = ConvolutionProblem::Pass;
using cudnn::Descriptor, cudnn::EngineConfiguration;

// All operations of a device share one workspace of the largest size that any of them needs. Engines that need more
// than this are rarely the fastest, and not worth a smaller batch.
constexpr std::size_t kWorkspaceLimit = std::size_t{1} << 30;

// run()'s operands, in this order, and their ids in the graph.
enum Operand : std::size_t { kInput, kWeights, kOutput, kOperands };
constexpr std::array<std::int64_t, kOperands> kIds{1, 2, 3};

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
}

using Extents = std::array<std::size_t, 4>;  // batch or filters, channels, height, width

std::array<Extents, kOperands> extents(const ConvolutionProblem& p) {
  return {Extents{p.batch, p.channels, p.height, p.width},
          Extents{p.filters, p.channels, p.kernel.height, p.kernel.width},
          Extents{p.batch, p.filters, p.output_height(), p.output_width()}};
}

Descriptor channels_last_tensor(std::int64_t id, cudnnDataType_t type, const Extents& extents) {
  std::array<std::int64_t, 4> sizes;
  std::ranges::copy(extents, sizes.begin());
  const auto [outer, channels, height, width] = sizes;
  const std::array<std::int64_t, 4> strides{height * width * channels, 1, width * channels, channels};
  return cudnn::tensor(id, type, sizes, strides, kVectorBytes);
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
  cudnnBackendAttributeName_t convolution, product_factor, sum_factor;
  std::array<cudnnBackendAttributeName_t, kOperands> operands;
};

OperationNames operation_names(Pass pass) {
  switch (pass) {
    case Pass::forward:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
              {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
               CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y}};
    case Pass::backward_data:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
              {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
               CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY}};
    default:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
              {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
               CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY}};
  }
}

}  // namespace

std::string to_string(const ConvolutionProblem& p) {
  const auto text = [](const Extent& extent) {
    return extent.square() ? fmt::format("{}", extent.height) : fmt::format("{} x {}", extent.height, extent.width);
  };
  const Border& border = p.padding;
  std::string padding = text({border.top, border.left});
  if (!border.symmetric()) padding += " to " + text({border.bottom, border.right});
  const std::string dilation = p.dilation == 1 ? "" : ", dilation " + text(p.dilation);
  return fmt::format("{} convolution{} in {}, {} x {} x {} x {} by {} filters of {} x {}, stride {}, padding {}{}",
                     name(p.pass), p.accumulate ? " (added)" : "", to_string(p.precision), p.batch, p.height, p.width,
                     p.channels, p.filters, p.kernel.height, p.kernel.width, text(p.stride), padding, dilation);
}

cudnn::Graph convolution_graph(const ConvolutionProblem& problem) {
  const OperationNames names = operation_names(problem.pass);
  std::deque<Descriptor> parts;
  Descriptor operation(names.type);
  const auto sizes = extents(problem);
  for (std::size_t operand = 0; operand < kOperands; ++operand) {
    parts.push_back(channels_last_tensor(kIds[operand], cudnn::data_type(problem.precision), sizes[operand]));
    operation.set(names.operands[operand], parts.back());
  }
  parts.push_back(convolution(problem));
  operation.set(names.convolution, parts.back())
      .set(names.product_factor, 1.0f)
      .set(names.sum_factor, problem.accumulate ? 1.0f : 0.0f)
      .finalize();
  std::vector<Descriptor> operations;
  operations.push_back(std::move(operation));
  return cudnn::graph(std::move(parts), std::move(operations));
}

namespace {

// A graph with an engine that computes it.
struct Built {
  std::string problem;
  std::shared_ptr<const cudnn::Graph> graph;
  EngineConfiguration configuration;
  Descriptor plan;
};
using BuiltPointer = std::shared_ptr<const Built>;

class Plan final : public CudnnConvolutionPlan {
 public:
  Plan(std::shared_ptr<const cudnn::Handle> handle, BuiltPointer built)
      : handle_(std::move(handle)), built_(std::move(built)) {}

  std::size_t workspace_bytes() const override { return cudnn::workspace_bytes(built_->plan); }
  const EngineConfiguration& configuration() const override { return built_->configuration; }

  void run(void* input, void* weights, void* output, void* workspace, cudaStream_t stream) override {
    if (!*handle_) fail("a {} that was planned for another machine's GPU cannot run", built_->problem);
    try {
      bind({input, weights, output, workspace});
      cudnn::check(cudnnSetStream(handle_->get(), stream));
      cudnn::check(cudnnBackendExecute(handle_->get(), built_->plan.handle(), pack_->handle()));
    } catch (const Error& error) {
      fail("a {} does not run: {}", built_->problem, error.what());
    }
  }

 private:
  using Addresses = std::array<void*, kOperands + 1>;  // of the operands and the workspace

  void bind(const Addresses& addresses) {
    if (pack_ && addresses == addresses_) return;  // they are the same in every step
    pack_.emplace(cudnn::variant_pack(kIds, std::span(addresses).first(kOperands), addresses.back()));
    addresses_ = addresses;
  }

  std::shared_ptr<const cudnn::Handle> handle_;
  BuiltPointer built_;
  std::optional<Descriptor> pack_;
  Addresses addresses_{};
};

// Memory to measure a problem on.
class Scratch {
 public:
  explicit Scratch(const ConvolutionProblem& problem) {
    const auto sizes = extents(problem);
    for (std::size_t operand = 0; operand < kOperands; ++operand)
      operands_[operand] = allocate_device(elements({sizes[operand].begin(), sizes[operand].end()}) *
                                           size_of(value_type(problem.precision)));
    // Small numbers of either type. (A GPU needs less power for multiplying zeros, so it would be faster.)
    for (const Buffer& operand : operands_) check(cudaMemset(operand.view().address, 0x2c, operand.view().bytes));
    check(cudaDeviceSynchronize());  // other streams do not wait for the memset's
  }

  // Returns the median time of a few runs, in microseconds. If the first run takes far longer than `least`, returns its
  // time.
  double measure(Plan& plan, double least) {
    constexpr int kRuns = 5;
    constexpr double kHopeless = 2;
    if (workspace_.view().bytes < plan.workspace_bytes()) workspace_ = allocate_device(plan.workspace_bytes());
    run(plan);  // the first run loads the kernels, and may compile them
    std::vector<double> times{time(plan)};
    if (times[0] > kHopeless * least) return times[0];
    while (times.size() < kRuns) times.push_back(time(plan));
    return median(times);
  }

 private:
  double time(Plan& plan) {
    check(cudaEventRecord(begin_.get(), stream_.get()));
    run(plan);
    check(cudaEventRecord(end_.get(), stream_.get()));
    check(cudaEventSynchronize(end_.get()));
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin_.get(), end_.get()));
    return 1e3 * static_cast<double>(milliseconds);
  }

  void run(Plan& plan) {
    plan.run(operands_[kInput].view().address, operands_[kWeights].view().address, operands_[kOutput].view().address,
             workspace_.view().address, stream_.get());
  }

  Stream stream_ = make_stream();
  Event begin_ = make_timed_event(), end_ = make_timed_event();
  std::array<Buffer, kOperands> operands_;
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
    BuiltPointer& built = built_[to_string(problem)];
    if (!built) built = tuning_ ? tuned(problem) : usable(problem, 1).front();
    return std::make_unique<Plan>(handle_, built);
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
    return std::make_shared<const Built>(
        Built{to_string(problem), std::move(graph), std::move(configuration), std::move(plan)});
  }

  // The tuning file's choice, or one measured now.
  BuiltPointer tuned(const ConvolutionProblem& problem) {
    const std::string name = to_string(problem);
    const auto known = tuning_->find(name);
    if (!known) return measured(problem);
    const auto graph = std::make_shared<const cudnn::Graph>(convolution_graph(problem));
    try {
      return build(graph, cudnn::configuration(*graph, device_, known->choice), problem);
    } catch (const Error& error) {
      fail("{}: {} is not usable for a {} ({}): delete the file to measure again", tuning_->file().string(),
           to_string(known->choice), name, error.what());
    }
  }

  BuiltPointer measured(const ConvolutionProblem& problem) {
    if (!*handle_)
      fail("{} has no entry for a {}, and there is no GPU here to measure on", tuning_->file().string(),
           to_string(problem));
    Scratch scratch(problem);
    BuiltPointer best;
    double least = std::numeric_limits<double>::infinity();
    std::string objection;
    for (const BuiltPointer& built : usable(problem, std::numeric_limits<std::size_t>::max())) {
      try {
        Plan plan(handle_, built);
        const double microseconds = scratch.measure(plan, least);
        if (microseconds >= least) continue;
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
