// The passes of batch norms that convolutions do: which of them have plans on an H200, and which are chosen.

#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <optional>
#include <set>

#include "kernels/cuda/vendor/cudnn_tuning.h"
#include "models/rewrites/fusion.h"
#include "models/zoo/zoo.h"
#include "tests/gpu/plans/h200.h"
#include "tests/unit/error_text.h"

namespace annulus::test {
namespace {

using Catch::Contains;
using cuda::ConvolutionPass, cuda::ConvolutionPasses, cuda::ConvolutionProblem, cuda::ConvolutionTuning;
using cuda::Forward, cuda::BackwardData, cuda::BackwardWeights, cuda::NormsBeside;

struct FusedConvolution {
  ConvolutionProblem problem;
  ConvolutionPasses passes;
  std::optional<std::size_t> ended;  // the batch norm at the end of a block that it could do
};

// Every convolution of a model, with all that its passes could do for the batch norms beside it.
std::vector<FusedConvolution> fused_convolutions(const std::string& model, std::size_t batch) {
  const Graph graph = fuse(zoo_entry(model).make(zoo_entry(model).task()));
  const auto& nodes = graph.nodes();
  const auto pairs = find_pairs(graph), only_readers = find_only_readers(graph);
  const auto shared_inputs = find_shared_inputs(graph);
  const auto norm = [&](std::size_t node) { return std::get_if<BatchNorm>(&nodes[node].operation); };
  std::vector<FusedConvolution> all;
  for (std::size_t i = 1; i < nodes.size(); ++i) {
    const auto* convolution = std::get_if<Convolution>(&nodes[i].operation);
    if (convolution == nullptr) continue;
    const ConvolutionProblem problem =
        forward_problem(*convolution, graph.input_shapes(nodes[i], batch)[0], Precision::fp16);
    const auto *before = norm(i - 1), *shared = shared_inputs[i] ? norm(*shared_inputs[i]) : nullptr;
    const bool normalized = pairs[i - 1] && before != nullptr && before->relu && !before->add;
    const bool begins_block = shared != nullptr && shared->relu && shared->add;
    ConvolutionPasses passes{.forward = {.statistics = only_readers[i] && norm(i + 1) != nullptr}};
    if (normalized)
      passes = {{Forward::normalized, passes.forward.statistics}, BackwardData::summed, BackwardWeights::of_normalized};
    if (begins_block) passes = {{Forward::block_end, passes.forward.statistics}, BackwardData::summed_elsewhere};
    all.push_back({problem, passes, begins_block ? shared_inputs[i] : std::nullopt});
  }
  return all;
}

bool has_plan(cuda::ConvolutionPlanner& planner, const ConvolutionProblem& problem) {
  try {
    planner.plan(problem);
    return true;
  } catch (const Error& error) {
    CHECK_THAT(error.what(), Contains("has no plan"));
    return false;
  }
}

// Chooses the reader that does passes of the end of a block: the first for which there are plans.
class BlockEnds {
 public:
  explicit BlockEnds(cuda::ConvolutionPlanner& planner) : planner_(planner) {}

  ConvolutionPasses choose(const FusedConvolution& convolution) {
    const auto& [problem, possible, ended] = convolution;
    if (!ended) return possible;
    all.insert(*ended);
    const bool sums = !summed.contains(*ended) && has_plan(planner_, problem.with(possible.backward_data));
    const bool computes = sums && has_plan(planner_, problem.with(possible.forward));
    if (sums) summed.insert(*ended);
    if (computes) computed.insert(*ended);
    return {{computes ? Forward::block_end : Forward::stored, possible.forward.statistics},
            sums ? BackwardData::summed_elsewhere : BackwardData::added};
  }

  std::set<std::size_t> all, summed, computed;

 private:
  cuda::ConvolutionPlanner& planner_;
};

TEST_CASE("every convolution of ResNet-50 has fused plans in fp16 on an H200") {
  const auto planner = cuda::make_convolution_planner_for(h200());
  BlockEnds ends(*planner);
  std::size_t statistics = 0, normalized = 0, gradient_sums = 0, largest = 0;
  for (const FusedConvolution& convolution : fused_convolutions("resnet50", 256)) {
    const auto check = [&](const ConvolutionProblem& fused) {
      INFO(to_string(fused));
      const auto made = plan(*planner, fused);
      CHECK(made->workspace_bytes() <= std::size_t{64} << 20);
      largest = std::max(largest, made->workspace_bytes());
    };
    const ConvolutionPasses passes = ends.choose(convolution);
    const ConvolutionProblem weights = convolution.problem.with(passes.backward_weights);
    const ConvolutionProblem data = convolution.problem.with(passes.backward_data);
    check(convolution.problem.with(passes.forward));
    if (weights.normalizes()) check(weights);
    if (data.sums_gradient()) check(data);
    statistics += passes.forward.statistics ? 1 : 0;
    normalized += weights.normalizes() ? 1 : 0;
    gradient_sums += data.sums_gradient() ? 1 : 0;
  }
  CHECK(statistics == 53);
  CHECK(normalized == 32);
  CHECK(gradient_sums == 32 + 15);
  CHECK(ends.computed.size() == 15);
  fmt::print(
      "ResNet-50, fp16: {} fused plans with statistics, {} with normalized inputs, {} that end blocks, {} with "
      "gradient sums; workspaces of at most {} KiB\n",
      statistics, normalized, ends.computed.size(), gradient_sums, largest >> 10);
}

// Convolutions with a stride, as all projections before which a block ends, have no plans for it, and those of 3x3 have
// none of forward. In bottleneck blocks the first convolution of the main branch has both.
TEST_CASE("ends of blocks that one of their readers does in fp16 on an H200") {
  const auto planner = cuda::make_convolution_planner_for(h200());
  const auto check = [&](const std::string& model, std::size_t all, std::size_t summed, std::size_t computed) {
    CAPTURE(model);
    BlockEnds ends(*planner);
    for (const FusedConvolution& convolution : fused_convolutions(model, 256)) ends.choose(convolution);
    CHECK(ends.all.size() == all);
    CHECK(ends.summed.size() == summed);
    CHECK(ends.computed.size() == computed);
  };
  check("resnet18", 7, 4, 0);
  check("resnet34", 15, 12, 0);
  check("resnet50", 15, 15, 15);
  check("resnet101", 32, 32, 32);
  check("resnet152", 49, 49, 49);
}

// The second convolution of a block, which can do passes of both batch norms beside it.
ConvolutionProblem problem() {
  return {Forward{}, Precision::fp16, 256, 64, 56, 56, 64, 3, 1, 1};
}

constexpr Forward kStatistics{.statistics = true}, kNormalized{Forward::normalized, true};
constexpr ConvolutionPasses kNone{}, kOnlyStatistics{.forward = kStatistics},
    kBoth{.forward = kNormalized, .backward_weights = BackwardWeights::of_normalized},
    kSums{.backward_data = BackwardData::summed},
    kAll{kNormalized, BackwardData::summed, BackwardWeights::of_normalized};
constexpr NormsBeside kAfter{.after = true}, kBeside{NormsBeside::rectified, true};

constexpr double kNever = std::numeric_limits<double>::infinity();

// A tuning file with times in microseconds, infinity if there is no plan.
class File {
 public:
  explicit File(const ConvolutionProblem& problem) : problem_(problem) {}

  void add(const ConvolutionPass& pass, double microseconds) {
    tuning_.add(to_string(problem_.with(pass)), {.microseconds = microseconds});
  }
  void add_own(const ConvolutionPass& pass, double microseconds) {
    ConvolutionProblem own = problem_.with(pass);
    own.own_products = true;
    tuning_.add(to_string(own), {.microseconds = microseconds});
  }
  void add_copy(std::size_t bytes, double microseconds) {
    tuning_.add(fmt::format("copy of {} bytes", bytes), {.microseconds = microseconds});
  }
  ConvolutionPasses choose(const NormsBeside& norms, bool deterministic = false) const {
    return cuda::make_convolution_planner_for(h200(), {tuning_.file(), deterministic})->choose_passes(problem_, norms);
  }

 private:
  TemporaryFolder folder_;
  ConvolutionProblem problem_;
  ConvolutionTuning tuning_{folder_ / "tuning.json", fmt::format("NVIDIA H200, cuDNN {}", cudnnGetVersion())};
};

struct Times {
  double plain, with_statistics, normalized, weights, normalized_weights, copy, data = 1, data_with_sums = kNever;
};

ConvolutionPasses chosen(const Times& times, const NormsBeside& norms, bool deterministic = false) {
  File file(problem());
  file.add(Forward{}, times.plain);
  file.add(kStatistics, times.with_statistics);
  file.add(kNormalized, times.normalized);
  file.add(BackwardWeights::rounded, times.weights);
  file.add(BackwardWeights::of_normalized, times.normalized_weights);
  file.add(BackwardData::written, times.data);
  file.add(BackwardData::summed, times.data_with_sums);
  file.add_copy(102760448, times.copy);
  return file.choose(norms, deterministic);
}

TEST_CASE("convolutions are fused if that was measured to be faster") {
  // Apart: 100 + 90 + a copy + half a copy. Statistics: 105 + 90 + a copy. Both: 130 + 120.
  CHECK(chosen({100, 105, 130, 90, 120, 60}, kBeside) == kBoth);
  CHECK(chosen({100, 105, 130, 90, 120, 54}, kBeside) == kOnlyStatistics);
  CHECK(chosen({100, 130, 170, 90, 120, 50}, kBeside) == kNone);
  CHECK(chosen({100, 105, 130, 90, 120, 50}, kAfter) == kOnlyStatistics);
  CHECK(chosen({100, 105, 130, 90, 120, 8}, kAfter) == kNone);
  CHECK(chosen({100, 105, 130, 90, kNever, 60}, kBeside) == kOnlyStatistics);
  CHECK(chosen({100, kNever, kNever, 90, 120, 50}, kBeside) == kNone);
  // Gradient sums apart: 80 + a copy.
  CHECK(chosen({100, 105, 130, 90, 120, 60, 80, 139}, kBeside) == kAll);
  CHECK(chosen({100, 105, 130, 90, 120, 60, 80, 141}, kBeside) == kBoth);
  CHECK(chosen({100, kNever, kNever, 90, kNever, 60, 80, 139}, kBeside) == kSums);
  CHECK(chosen({100, 105, 130, 90, 120, 60, 80, kNever}, kBeside) == kBoth);
  CHECK(chosen({100, 105, 130, 90, 120, 60, 80, 139}, kBeside, true) == kNone);  // sums differ from run to run
  // Nothing is measured without a file, nor without a GPU.
  CHECK(cuda::make_convolution_planner_for(h200())->choose_passes(problem(), kBeside) == kNone);
  const TemporaryFolder empty;
  const auto planner = cuda::make_convolution_planner_for(h200(), {.file = empty / "tuning.json"});
  CHECK_THAT(error_of([&] { planner->choose_passes(problem(), kBeside); }),
             Contains("there is no GPU here to measure on"));
}

TEST_CASE("the end of a block is fused if that was measured to be faster") {
  const ConvolutionProblem begin{Forward{}, Precision::fp16, 256, 256, 56, 56, 64, 1, 1, 0};
  const ConvolutionPasses both{kStatistics, BackwardData::summed_elsewhere};
  const ConvolutionPasses all{{Forward::block_end, true}, BackwardData::summed_elsewhere};
  const auto chosen = [&](double forward, double data) {
    File file(begin);
    file.add(Forward{}, 100);
    file.add(kStatistics, 105);
    file.add(all.forward, forward);
    file.add(BackwardData::added, 80);
    file.add(BackwardData::summed_elsewhere, data);
    file.add(BackwardWeights::rounded, 90);
    file.add(BackwardWeights::wide, kNever);
    file.add_copy(49152, 3);
    file.add_copy(411041792, 60);
    file.add_copy(102760448, 20);
    return file.choose({NormsBeside::block_end, true});
  };
  // Apart, either pass costs one and a half copies more. Without gradient sums, backward needs the bits of the ReLU.
  CHECK(chosen(194, 169) == all);
  CHECK(chosen(196, 169) == both);
  CHECK(chosen(kNever, 169) == both);
  CHECK(chosen(194, 171) == kOnlyStatistics);
  CHECK(chosen(194, kNever) == kOnlyStatistics);
}

TEST_CASE("a convolution is our own product if that was measured to be faster") {
  const ConvolutionProblem one{Forward{}, Precision::bf16, 256, 64, 56, 56, 256, 1, 1, 0};
  const auto chosen = [&](double forward, double data) {
    File file(one);
    file.add(Forward{}, 100);
    file.add_own(kStatistics, 110);
    file.add_own(kNormalized, forward);
    file.add(BackwardWeights::rounded, 90);
    file.add(BackwardWeights::wide, kNever);
    file.add(BackwardData::written, 80);
    file.add_own(BackwardData::summed, data);
    file.add_copy(49152, 3);
    file.add_copy(102760448, 60);
    file.add_copy(411041792, 240);
    return file.choose(kBeside, true);
  };
  const ConvolutionPasses statistics{.forward = kStatistics, .own_products = true};
  const ConvolutionPasses all{kNormalized, BackwardData::summed, BackwardWeights::rounded, true};
  // Apart, forward and backward take a copy of the input more, and statistics half a copy of the output.
  CHECK(chosen(169, 139) == all);
  CHECK(chosen(171, 141) == statistics);
  CHECK(chosen(171, 139) == ConvolutionPasses{kStatistics, BackwardData::summed, BackwardWeights::rounded, true});
  CHECK(chosen(kNever, kNever) == statistics);
}

TEST_CASE("a small 3x3 convolution after a block is our own if that was measured to be faster") {
  const ConvolutionProblem begin{Forward{}, Precision::bf16, 128, 16, 28, 28, 32, 3, 2, 1};
  const auto chosen = [&](double forward, double data) {
    File file(begin);
    file.add(Forward{}, 10);
    file.add_own(kStatistics, 11);
    file.add_own(Forward{Forward::block_end, true}, forward);
    file.add(BackwardWeights::rounded, 9);
    file.add(BackwardData::added, 8);
    file.add_own(BackwardData::summed_elsewhere, data);
    file.add_copy(3211264, 2);
    file.add_copy(1605632, 1);
    return file.choose({NormsBeside::block_end, true}, true);
  };
  const auto passes = [](const Forward& forward) {
    return ConvolutionPasses{forward, BackwardData::summed_elsewhere, BackwardWeights::rounded, true};
  };
  // Apart, either pass costs one and a half copies more, and statistics half a copy.
  CHECK(chosen(13, 10) == passes({Forward::block_end, true}));
  CHECK(chosen(14, 10) == passes({}));
  CHECK(chosen(13, 12) == kNone);
  CHECK(chosen(kNever, kNever) == kNone);
}

TEST_CASE("the gradient of a 1x1 convolution's weights is a product in float32 if that was measured to be faster") {
  const ConvolutionProblem one{Forward{}, Precision::fp16, 256, 64, 56, 56, 256, 1, 1, 0};
  const ConvolutionPasses wide{.backward_weights = BackwardWeights::wide};
  const auto chosen = [&](double product, const NormsBeside& norms) {
    File file(one);
    for (const Forward& pass : {Forward{}, kStatistics, kNormalized}) file.add(pass, 100);
    for (const auto pass : {BackwardWeights::rounded, BackwardWeights::of_normalized}) file.add(pass, 90);
    file.add(BackwardWeights::wide, product);
    file.add(BackwardData::written, 80);
    file.add(BackwardData::summed, kNever);
    file.add_copy(49152, 3);  // as many bytes as the pass that widens the gradient
    file.add_copy(102760448, 60);
    file.add_copy(411041792, 240);
    return file.choose(norms);
  };
  CHECK(chosen(92, {}) == wide);
  CHECK(chosen(94, {}) == kNone);
  CHECK(chosen(kNever, {}) == kNone);
  CHECK(chosen(92, kAfter) == ConvolutionPasses{.forward = kStatistics, .backward_weights = BackwardWeights::wide});
  CHECK(chosen(92, kBeside) == kBoth);
}

}  // namespace
}  // namespace annulus::test
