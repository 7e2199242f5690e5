#include "kernels/cuda/vendor/cudnn_attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/cuda/runtime/layout.h"
#include "kernels/cuda/runtime/runtime.h"
#include "kernels/cuda/vendor/cudnn_choice.h"
#include "kernels/cuda/vendor/stopwatch.h"

// cuDNN has no attention operation that we could use: engines recognize a graph with matrix products, pointwise
// operations and reductions, and compute the graph as FlashAttention does. Engines recognize only the graphs that
// NVIDIA's cudnn-frontend builds (node/scaled_dot_product_flash_attention.h), down to a factor 1.
namespace annulus::cuda {
namespace {

using Pass = AttentionProblem::Pass;
using cudnn::Descriptor, cudnn::EngineConfiguration, cudnn::Place;

// Up to 9.15, cudnn-frontend works around lengths that are not multiples of 128.
constexpr std::size_t kOldestVersion = 91600;

constexpr std::size_t kWidestHead = 128;  // that is documented for all GPUs

// The deterministic backward pass keeps a {length, length} matrix per text and head.
constexpr std::size_t kWorkspaceLimit = std::size_t{1} << 30;

// The compute capability from which on backward is deterministic only with settings that heuristics do not propose.
constexpr int kFirstUnorderedMajor = 10;

// Ids in the graph for the tensors with an address at run time.
enum Id : std::int64_t {
  kQueries = 1,
  kKeys,
  kValues,
  kOutput,
  kSums,
  kProducts,
  kOutputGradient,
  kQueryGradient,
  kKeyGradient,
  kValueGradient,
  kScale,
  kMasked,
  kOne,
  kFirstIntermediate
};

class Builder {
 public:
  explicit Builder(const AttentionProblem& problem)
      : pass_(problem.pass),
        causal_(problem.causal),
        values_(cudnn::data_type(problem.precision)),
        batch_(signed_size(problem.batch)),
        heads_(signed_size(problem.heads)),
        length_(signed_size(problem.length)),
        each_(signed_size(problem.each)),
        input_(features(signed_size(problem.input_row))),
        output_(features(signed_size(problem.output_row))) {}

  AttentionGraph build() && {
    if (pass_ == Pass::backward)
      backward();
    else
      forward();
    return {cudnn::graph(std::move(parts_), std::move(operations_)), std::move(ids_)};
  }

 private:
  using Tensor = const Descriptor&;
  using Sizes = std::array<std::int64_t, 4>;
  struct Layout {
    Sizes extents, strides;
  };

  static std::int64_t signed_size(std::size_t size) { return static_cast<std::int64_t>(size); }

  static Layout dense(const Sizes& e) { return {e, {e[1] * e[2] * e[3], e[2] * e[3], e[3], 1}}; }
  static Layout turned(Layout layout) {
    std::swap(layout.extents[2], layout.extents[3]);
    std::swap(layout.strides[2], layout.strides[3]);
    return layout;
  }

  // Return layouts, per head: {queries or keys, features}, {queries, keys} and {queries, 1}.
  Layout features(std::int64_t row) const { return {{batch_, heads_, length_, each_}, {length_ * row, each_, row, 1}}; }
  Layout scores() const { return dense({batch_, heads_, length_, length_}); }
  Layout queries() const { return dense({batch_, heads_, length_, 1}); }

  // Adds softmax(scores) V, and the logarithms of the exponentials' sums.
  void forward() {
    Tensor masked = masked_scores();
    Tensor most = reduction(CUDNN_REDUCE_TENSOR_MAX, masked, intermediate(queries()));
    Tensor exponentials = pointwise(CUDNN_POINTWISE_EXP, {&pointwise(CUDNN_POINTWISE_SUB, {&masked, &most})});
    Tensor totals = reduction(CUDNN_REDUCE_TENSOR_ADD, exponentials, intermediate(queries()));
    Tensor logarithms = pointwise(CUDNN_POINTWISE_LOG, {&totals}, intermediate(queries()));
    pointwise(CUDNN_POINTWISE_ADD, {&most, &logarithms},
              pass_ == Pass::forward ? stored(kSums, CUDNN_DATA_FLOAT, queries()) : intermediate(queries()));
    Tensor weights = pointwise(CUDNN_POINTWISE_DIV, {&exponentials, &totals}, intermediate(scores(), values_));
    product(weights, stored(kValues, values_, input_), stored(kOutput, values_, output_));
  }

  // With weights P = exp(scores - logarithms of sums), output O = P V and G = P (dO V^T - sums over dO O):
  // dV = P^T dO, dK = G^T Q, dQ = G K. G is in the workspace; the alternative, which is faster, adds to dQ in float32
  // in the order in which blocks of threads finish.
  void backward() {
    Tensor output_gradient = stored(kOutputGradient, values_, output_);
    Tensor elements =
        pointwise(CUDNN_POINTWISE_MUL, {&output_gradient, &stored(kOutput, values_, output_)},
                  intermediate({output_.extents, {heads_ * length_ * each_, length_ * each_, heads_ * each_, 1}}));
    Tensor sums = reduction(CUDNN_REDUCE_TENSOR_ADD, elements, intermediate(queries()));
    // Without this product, the workspace is three times as large.
    Tensor products =
        pointwise(CUDNN_POINTWISE_MUL, {&sums, &argument(kOne)}, stored(kProducts, CUDNN_DATA_FLOAT, queries()));

    Tensor masked = masked_scores();
    Tensor logarithms = stored(kSums, CUDNN_DATA_FLOAT, queries());
    Tensor weights = pointwise(CUDNN_POINTWISE_EXP, {&pointwise(CUDNN_POINTWISE_SUB, {&masked, &logarithms})});
    product(reshape(weights, turned(scores())), output_gradient, stored(kValueGradient, values_, input_));

    Tensor to_weights = product(output_gradient, stored(kValues, values_, turned(input_)), intermediate(scores()));
    Tensor differences = pointwise(CUDNN_POINTWISE_SUB, {&to_weights, &products});
    Tensor slopes = pointwise(CUDNN_POINTWISE_MUL, {&differences, &weights});
    Tensor scaled = pointwise(CUDNN_POINTWISE_MUL, {&slopes, scale_}, intermediate(scores(), values_));
    product(reshape(scaled, turned(scores())), *queries_, stored(kKeyGradient, values_, input_));
    product(scaled, reshape(*keys_, input_), stored(kQueryGradient, values_, input_));
  }

  // Returns Q K^T / sqrt(head width), and -infinity for the keys that a query does not see.
  Tensor masked_scores() {
    queries_ = &stored(kQueries, values_, input_);
    keys_ = &stored(kKeys, values_, turned(input_));
    scale_ = &argument(kScale);
    Tensor scaled = pointwise(CUDNN_POINTWISE_MUL, {&product(*queries_, *keys_, intermediate(scores())), scale_});
    if (!causal_) return scaled;
    Tensor query = index(scaled, 2), key = index(scaled, 3);
    Tensor seen = pointwise(CUDNN_POINTWISE_CMP_GE, {&query, &key}, intermediate(scores(), CUDNN_DATA_BOOLEAN),
                            CUDNN_DATA_BOOLEAN);
    return pointwise(CUDNN_POINTWISE_BINARY_SELECT, {&scaled, &argument(kMasked), &seen});
  }

  Tensor stored(Id id, cudnnDataType_t type, const Layout& layout) {
    ids_.push_back(id);
    return tensor(id, type, layout, Place::device);
  }
  Tensor argument(Id id) {
    ids_.push_back(id);
    return tensor(id, CUDNN_DATA_FLOAT, dense({1, 1, 1, 1}), Place::argument);
  }
  Tensor intermediate(const Layout& layout, cudnnDataType_t type = CUDNN_DATA_FLOAT) {
    return tensor(next_++, type, layout, Place::intermediate);
  }
  Tensor tensor(std::int64_t id, cudnnDataType_t type, const Layout& layout, Place place) {
    return parts_.emplace_back(cudnn::tensor(id, type, layout.extents, layout.strides, kVectorBytes, place));
  }

  // Add an operation, and return the result.

  Tensor product(Tensor a, Tensor b, Tensor to) {
    Descriptor& matmul = parts_.emplace_back(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    matmul.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_DATA_FLOAT).finalize();
    operations_.emplace_back(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR)
        .set(CUDNN_ATTR_OPERATION_MATMUL_DESC, matmul)
        .set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, a)
        .set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, b)
        .set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, to)
        .finalize();
    return to;
  }

  Tensor reduction(cudnnReduceTensorOp_t mode, Tensor from, Tensor to) {
    Descriptor& reduction = parts_.emplace_back(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    reduction.set(CUDNN_ATTR_REDUCTION_OPERATOR, mode).set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_DATA_FLOAT).finalize();
    operations_.emplace_back(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR)
        .set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, reduction)
        .set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, from)
        .set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, to)
        .finalize();
    return to;
  }

  Tensor reshape(Tensor from, const Layout& layout) {
    Tensor to = intermediate(layout, values_);
    operations_.emplace_back(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR)
        .set(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, from)
        .set(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, to)
        .finalize();
    return to;
  }

  Tensor pointwise(cudnnPointwiseMode_t mode, std::initializer_list<const Descriptor*> from) {
    return pointwise(mode, from, intermediate(scores()));
  }
  Tensor pointwise(cudnnPointwiseMode_t mode, std::initializer_list<const Descriptor*> from, Tensor to,
                   cudnnDataType_t compute = CUDNN_DATA_FLOAT) {
    Descriptor& function = parts_.emplace_back(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    function.set(CUDNN_ATTR_POINTWISE_MODE, mode).set(CUDNN_ATTR_POINTWISE_MATH_PREC, compute).finalize();
    return apply(function, from, to);
  }

  // Returns each element's index along an axis.
  Tensor index(Tensor like, std::int64_t axis) {
    Descriptor& function = parts_.emplace_back(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    function.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_POINTWISE_GEN_INDEX)
        .set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_DATA_FLOAT)
        .set(CUDNN_ATTR_POINTWISE_AXIS, axis)
        .finalize();
    return apply(function, {&like}, intermediate(scores(), CUDNN_DATA_INT32));
  }

  Tensor apply(const Descriptor& function, std::initializer_list<const Descriptor*> from, Tensor to) {
    operations_.push_back(cudnn::pointwise_operation(function, from, to));
    return to;
  }

  Pass pass_;
  bool causal_;
  cudnnDataType_t values_;
  std::int64_t batch_, heads_, length_, each_;
  Layout input_, output_;
  const Descriptor *queries_ = nullptr, *keys_ = nullptr, *scale_ = nullptr;
  std::deque<Descriptor> parts_;
  std::vector<Descriptor> operations_;
  std::vector<std::int64_t> ids_;
  std::int64_t next_ = kFirstIntermediate;
};

int current_major() {
  int device = 0, major = 0;
  check(cudaGetDevice(&device));
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  return major;
}

// Holds cuDNN's handle and the GPU that plans are made for: the current GPU or, with `handle` null, the GPU that `json`
// describes, which this machine need not have.
struct Library {
  explicit Library(const std::string& json)
      : handle(json.empty() ? cudnn::make_handle() : nullptr),
        device(json.empty() ? cudnn::device_properties(handle.get()) : cudnn::device_properties(json)),
        major(json.empty() ? current_major() : nlohmann::json::parse(json).at("deviceVer").get<int>() / 100),
        name(json.empty() ? current_device_name() : nlohmann::json::parse(json).value("deviceName", "unknown GPU")) {}

  cudnn::Handle handle;
  Descriptor device;
  int major;  // the GPU's compute capability
  std::string name;
};

// A graph, with an engine that computes the graph.
struct Built {
  std::shared_ptr<const AttentionGraph> graph;
  EngineConfiguration configuration;
  Descriptor plan;
};
using BuiltPointer = std::shared_ptr<const Built>;

class Plan final : public CudnnAttentionPlan {
 public:
  Plan(std::shared_ptr<const Library> library, BuiltPointer built, const AttentionProblem& problem)
      : library_(std::move(library)),
        built_(std::move(built)),
        part_bytes_(problem.heads * problem.each * size_of(value_type(problem.precision))),
        scale_(1 / std::sqrt(static_cast<float>(problem.each))) {}

  std::size_t workspace_bytes() const override { return cudnn::workspace_bytes(built_->plan); }
  const EngineConfiguration& configuration() const override { return built_->configuration; }

  void run(const AttentionOperands& operands, void* workspace, cudaStream_t stream) override {
    if (!library_->handle) fail("attention that was planned for another machine's GPU cannot run");
    std::vector<void*> addresses;
    for (const std::int64_t id : built_->graph->ids) addresses.push_back(address(static_cast<Id>(id), operands));
    addresses.push_back(workspace);
    if (!pack_ || addresses != addresses_) {  // addresses are the same in every step
      pack_.emplace(
          cudnn::variant_pack(built_->graph->ids, std::span(addresses).first(addresses.size() - 1), workspace));
      addresses_ = addresses;
    }
    cudnn::check(cudnnSetStream(library_->handle.get(), stream));
    cudnn::check(cudnnBackendExecute(library_->handle.get(), built_->plan.handle(), pack_->handle()));
  }

 private:
  void* address(Id id, const AttentionOperands& operands) {
    // Returns a token's queries, keys or values.
    const auto part = [&](const void* first, std::size_t number) -> void* {
      return const_cast<std::byte*>(static_cast<const std::byte*>(first) + number * part_bytes_);
    };
    switch (id) {
      case kQueries:
        return part(operands.input, 0);
      case kKeys:
        return part(operands.input, 1);
      case kValues:
        return part(operands.input, 2);
      case kOutput:
        return operands.output;
      case kSums:
        return operands.sums;
      case kProducts:
        return operands.products;
      case kOutputGradient:
        return part(operands.output_gradient, 0);
      case kQueryGradient:
        return part(operands.input_gradient, 0);
      case kKeyGradient:
        return part(operands.input_gradient, 1);
      case kValueGradient:
        return part(operands.input_gradient, 2);
      case kScale:
        return &scale_;
      case kMasked:
        return &masked_;
      default:
        return &one_;
    }
  }

  std::shared_ptr<const Library> library_;
  BuiltPointer built_;
  std::size_t part_bytes_;  // a token's queries, keys or values
  float scale_, masked_ = -std::numeric_limits<float>::infinity(), one_ = 1;
  std::optional<Descriptor> pack_;
  std::vector<void*> addresses_;
};

// Memory to measure a problem on.
class Scratch {
 public:
  explicit Scratch(const AttentionProblem& p)
      : input_(numbers(p, p.input_row)),
        output_(numbers(p, p.output_row)),
        output_gradient_(numbers(p, p.output_row)),
        input_gradient_(numbers(p, p.input_row)),
        sums_(allocate_numbers(p.batch * p.heads * p.length * sizeof(float))),
        products_(allocate_numbers(p.batch * p.heads * p.length * sizeof(float))) {}

  double measure(AttentionPlan& plan, double least) {
    if (workspace_.view().bytes < plan.workspace_bytes()) workspace_ = allocate_device(plan.workspace_bytes());
    const AttentionOperands operands{.input = input_.view().address,
                                     .output = output_.view().address,
                                     .sums = reinterpret_cast<float*>(sums_.view().address),
                                     .products = reinterpret_cast<float*>(products_.view().address),
                                     .output_gradient = output_gradient_.view().address,
                                     .input_gradient = input_gradient_.view().address};
    return stopwatch_.measure([&](cudaStream_t stream) { plan.run(operands, workspace_.view().address, stream); },
                              least);
  }

 private:
  static Buffer numbers(const AttentionProblem& p, std::size_t row) {
    return allocate_numbers(p.batch * p.length * row * size_of(value_type(p.precision)));
  }

  Stopwatch stopwatch_;
  Buffer input_, output_, output_gradient_, input_gradient_, sums_, products_, workspace_;
};

class Planner final : public AttentionPlanner {
 public:
  Planner(std::string json, const Tuning& tuning, std::shared_ptr<TuningBudget> budget)
      : json_(std::move(json)), tuning_(tuning), budget_(std::move(budget)) {
    if (!budget_) budget_ = std::make_shared<TuningBudget>(tuning);
  }

  std::unique_ptr<AttentionPlan> plan(const AttentionProblem& problem) override {
    const auto [known, fresh] = built_.try_emplace(problem);
    if (fresh) known->second = build(problem);
    return known->second ? std::make_unique<Plan>(library_, known->second, problem) : nullptr;
  }

 private:
  // Returns null if there is no plan.
  BuiltPointer build(const AttentionProblem& problem) {
    if (value_type(problem.precision) == DataType::f32 || problem.each > kWidestHead) return nullptr;
    if (problem.each % channel_block(value_type(problem.precision)) != 0) return nullptr;  // keys are not aligned
    if (problem.length == 1 || cudnnGetVersion() < kOldestVersion) return nullptr;  // cuDNN excludes a single key
    if (!library_) open();
    if (problem.pass == Pass::backward && library_->major >= kFirstUnorderedMajor && deterministic()) return nullptr;
    if (tuned_) return build_tuned(problem);
    const auto found = usable(problem, 1);
    return found.empty() ? nullptr : found[0];
  }

  void open() {
    library_ = std::make_shared<const Library>(json_);
    if (!tuning_.file.empty())
      tuned_.emplace(tuning_.file, fmt::format("{}, cuDNN {}", library_->name, cudnnGetVersion()), budget_);
  }

  BuiltPointer build_tuned(const AttentionProblem& problem) {
    const std::string name = to_string(problem) + (deterministic() ? "" : " in any order");
    const auto known = tuned_->known(name);
    const bool one = !known && budget_->spent();
    const std::vector<BuiltPointer> found = usable(problem, one ? 1 : kMost, known);
    if (found.empty() && !known) return nullptr;
    std::vector<cudnn::Choice> choices;
    for (const BuiltPointer& built : found) choices.push_back(built->configuration.choice);
    std::optional<Scratch> scratch;
    return found[tuned_->fastest(name, choices, [&](std::size_t candidate, double least) {
      if (!library_->handle) fail("there is no GPU here to measure on");
      if (!scratch) scratch.emplace(problem);
      return scratch->measure(*std::make_unique<Plan>(library_, found[candidate], problem), least);
    })];
  }

  // Returns up to `most` usable plans, probably the fastest first; if `only` is given, that choice's.
  std::vector<BuiltPointer> usable(const AttentionProblem& problem, std::size_t most,
                                   const std::optional<cudnn::Choice>& only = {}) const {
    std::vector<BuiltPointer> found;
    for (const auto mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
      try {
        add_usable(problem, mode, most, only, found);
      } catch (const Error&) {  // no engine recognizes the graph
      }
      if (!found.empty()) break;
    }
    return found;
  }

  void add_usable(const AttentionProblem& problem, cudnnBackendHeurMode_t mode, std::size_t most,
                  const std::optional<cudnn::Choice>& only, std::vector<BuiltPointer>& found) const {
    const auto graph = std::make_shared<const AttentionGraph>(attention_graph(problem));
    for (EngineConfiguration& configuration : cudnn::configurations(graph->graph, library_->device, mode)) {
      if (found.size() == most) return;
      if (only && configuration.choice != *only) continue;
      if (!cudnn::objection(configuration, problem.precision, deterministic()).empty()) continue;
      try {
        Descriptor plan = cudnn::execution_plan(configuration, library_->device, library_->handle.get());
        if (cudnn::workspace_bytes(plan) <= kWorkspaceLimit)
          found.push_back(std::make_shared<const Built>(Built{graph, std::move(configuration), std::move(plan)}));
      } catch (const Error&) {  // the next engine may support it
      }
    }
  }

  bool deterministic() const { return tuning_.deterministic || tuning_.file.empty(); }

  static constexpr std::size_t kMost = 16;  // candidates to be measured

  std::string json_;  // see Library
  Tuning tuning_;
  std::shared_ptr<TuningBudget> budget_;
  std::shared_ptr<const Library> library_;          // made on first use: most networks have no attention
  std::optional<TunedChoice> tuned_;                // with the library, if there is a tuning file
  std::map<AttentionProblem, BuiltPointer> built_;  // a network has many equal layers
};

}  // namespace

AttentionGraph attention_graph(const AttentionProblem& problem) {
  return Builder(problem).build();
}

std::string to_string(const AttentionProblem& p) {
  constexpr std::array kPasses{"inference", "forward", "backward"};
  return fmt::format("{} {}attention {}, {} texts of {}, {} heads of {}, rows of {} and {}", to_string(p.precision),
                     p.causal ? "causal " : "", kPasses.at(static_cast<std::size_t>(p.pass)), p.batch, p.length,
                     p.heads, p.each, p.input_row, p.output_row);
}

std::unique_ptr<AttentionPlanner> make_attention_planner(const Tuning& tuning, std::shared_ptr<TuningBudget> budget) {
  return std::make_unique<Planner>("", tuning, std::move(budget));
}

std::unique_ptr<AttentionPlanner> make_attention_planner_for(const std::string& device_properties_json,
                                                             const Tuning& tuning,
                                                             std::shared_ptr<TuningBudget> budget) {
  return std::make_unique<Planner>(device_properties_json, tuning, std::move(budget));
}

}  // namespace annulus::cuda
