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
using cuda::ConvolutionFusion, cuda::ConvolutionProblem, cuda::ConvolutionTuning;
using Pass = ConvolutionProblem::Pass;

struct FusedConvolution {
  ConvolutionProblem problem;
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
    ConvolutionProblem problem = forward_problem(*convolution, graph.input_shapes(nodes[i], batch)[0], Precision::fp16);
    const auto *before = norm(i - 1), *shared = shared_inputs[i] ? norm(*shared_inputs[i]) : nullptr;
    const bool normalized = pairs[i - 1] && before != nullptr && before->relu && !before->add;
    problem.accumulate = shared != nullptr && shared->relu && shared->add;
    problem.fusion = {.normalized = normalized,
                      .ends_block = problem.accumulate,
                      .statistics = only_readers[i] && norm(i + 1) != nullptr,
                      .gradient_sums = normalized || problem.accumulate};
    all.push_back({problem, problem.accumulate ? shared_inputs[i] : std::nullopt});
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

  ConvolutionProblem choose(const FusedConvolution& convolution) {
    ConvolutionProblem problem = convolution.problem;
    if (!convolution.ended) return problem;
    all.insert(*convolution.ended);
    ConvolutionFusion& fusion = problem.fusion;
    fusion.gradient_sums =
        !summed.contains(*convolution.ended) && has_plan(planner_, problem.with(Pass::backward_data));
    fusion.ends_block = fusion.gradient_sums && has_plan(planner_, problem.with(Pass::forward));
    if (fusion.gradient_sums) summed.insert(*convolution.ended);
    if (fusion.ends_block) computed.insert(*convolution.ended);
    return problem;
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
    const ConvolutionProblem problem = ends.choose(convolution);
    check(problem.with(Pass::forward));
    if (problem.fusion.normalized) check(problem.with(Pass::backward_weights));
    if (problem.fusion.gradient_sums) check(problem.with(Pass::backward_data));
    statistics += problem.fusion.statistics ? 1 : 0;
    normalized += problem.fusion.normalized ? 1 : 0;
    gradient_sums += problem.fusion.gradient_sums ? 1 : 0;
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
  return {Pass::forward, Precision::fp16, 256, 64, 56, 56, 64, 3, 1, 1};
}

constexpr ConvolutionFusion kNone{}, kStatistics{.statistics = true}, kBoth{.normalized = true, .statistics = true},
    kSums{.gradient_sums = true}, kAll{.normalized = true, .statistics = true, .gradient_sums = true};

constexpr double kNever = std::numeric_limits<double>::infinity();

// A tuning file with times in microseconds, infinity if there is no plan.
class File {
 public:
  explicit File(const ConvolutionProblem& problem) : problem_(problem) {}

  void add(Pass pass, const ConvolutionFusion& fusion, double microseconds) {
    ConvolutionProblem p = problem_;
    p.fusion = fusion;
    tuning_.add(to_string(p.with(pass)), {.microseconds = microseconds});
  }
  void add_copy(std::size_t bytes, double microseconds) {
    tuning_.add(fmt::format("copy of {} bytes", bytes), {.microseconds = microseconds});
  }
  ConvolutionFusion choose(const ConvolutionFusion& possible) const {
    return cuda::make_convolution_planner_for(h200(), tuning_.file())->choose_fusion(problem_, possible);
  }

 private:
  TemporaryFolder folder_;
  ConvolutionProblem problem_;
  ConvolutionTuning tuning_{folder_ / "tuning.json", fmt::format("NVIDIA H200, cuDNN {}", cudnnGetVersion())};
};

struct Times {
  double plain, with_statistics, normalized, weights, normalized_weights, copy, data = 1, data_with_sums = kNever;
};

ConvolutionFusion chosen(const Times& times, const ConvolutionFusion& possible) {
  File file(problem());
  file.add(Pass::forward, kNone, times.plain);
  file.add(Pass::forward, kStatistics, times.with_statistics);
  file.add(Pass::forward, kBoth, times.normalized);
  file.add(Pass::backward_weights, kNone, times.weights);
  file.add(Pass::backward_weights, kBoth, times.normalized_weights);
  file.add(Pass::backward_data, kNone, times.data);
  file.add(Pass::backward_data, kSums, times.data_with_sums);
  file.add_copy(102760448, times.copy);
  return file.choose(possible);
}

TEST_CASE("convolutions are fused if that was measured to be faster") {
  // Apart: 100 + 90 + a copy + half a copy. Statistics: 105 + 90 + a copy. Both: 130 + 120.
  CHECK(chosen({100, 105, 130, 90, 120, 60}, kBoth) == kBoth);
  CHECK(chosen({100, 105, 130, 90, 120, 54}, kBoth) == kStatistics);
  CHECK(chosen({100, 130, 170, 90, 120, 50}, kBoth) == kNone);
  CHECK(chosen({100, 105, 130, 90, 120, 50}, kStatistics) == kStatistics);
  CHECK(chosen({100, 105, 130, 90, 120, 8}, kStatistics) == kNone);
  CHECK(chosen({100, 105, 130, 90, kNever, 60}, kBoth) == kStatistics);
  CHECK(chosen({100, kNever, kNever, 90, 120, 50}, kBoth) == kNone);
  // Gradient sums apart: 80 + a copy.
  CHECK(chosen({100, 105, 130, 90, 120, 60, 80, 139}, kAll) == kAll);
  CHECK(chosen({100, 105, 130, 90, 120, 60, 80, 141}, kAll) == kBoth);
  CHECK(chosen({100, 105, 130, 90, 120, 60, 80, 139}, kBoth) == kBoth);
  CHECK(chosen({100, kNever, kNever, 90, kNever, 60, 80, 139}, kAll) == kSums);
  CHECK(chosen({100, 105, 130, 90, 120, 60, 80, kNever}, kAll) == kBoth);
  // Nothing is measured without a file, nor without a GPU.
  CHECK(cuda::make_convolution_planner_for(h200())->choose_fusion(problem(), kBoth) == kNone);
  const TemporaryFolder empty;
  const auto planner = cuda::make_convolution_planner_for(h200(), empty / "tuning.json");
  CHECK_THAT(error_of([&] { planner->choose_fusion(problem(), kBoth); }),
             Contains("there is no GPU here to measure on"));
}

TEST_CASE("the end of a block is fused if that was measured to be faster") {
  const ConvolutionProblem begin{Pass::forward, Precision::fp16, 256, 256, 56, 56, 64, 1, 1, 0, 1, true};
  const ConvolutionFusion both{.statistics = true, .gradient_sums = true};
  const ConvolutionFusion all{.ends_block = true, .statistics = true, .gradient_sums = true};
  const auto chosen = [&](double forward, double data) {
    File file(begin);
    file.add(Pass::forward, kNone, 100);
    file.add(Pass::forward, kStatistics, 105);
    file.add(Pass::forward, all, forward);
    file.add(Pass::backward_data, kNone, 80);
    file.add(Pass::backward_data, kSums, data);
    file.add_copy(411041792, 60);
    file.add_copy(102760448, 20);
    return file.choose(all);
  };
  // Apart, either pass costs one and a half copies more. Without gradient sums, backward needs the bits of the ReLU.
  CHECK(chosen(194, 169) == all);
  CHECK(chosen(196, 169) == both);
  CHECK(chosen(kNever, 169) == both);
  CHECK(chosen(194, 171) == kStatistics);
  CHECK(chosen(194, kNever) == kStatistics);
}

TEST_CASE("the gradient of a 1x1 convolution's weights is a product in float32 if that was measured to be faster") {
  const ConvolutionProblem one{Pass::forward, Precision::fp16, 256, 64, 56, 56, 256, 1, 1, 0};
  const ConvolutionFusion wide{.wide_weights = true};
  const auto chosen = [&](double product, const ConvolutionFusion& possible) {
    File file(one);
    for (const ConvolutionFusion& fusion : {kNone, kStatistics, kBoth}) file.add(Pass::forward, fusion, 100);
    for (const ConvolutionFusion& fusion : {kNone, kBoth}) file.add(Pass::backward_weights, fusion, 90);
    file.add(Pass::backward_weights, wide, product);
    file.add_copy(49152, 3);  // as many bytes as the pass that widens the gradient
    file.add_copy(102760448, 60);
    file.add_copy(411041792, 240);
    return file.choose(possible);
  };
  CHECK(chosen(92, wide) == wide);
  CHECK(chosen(94, wide) == kNone);
  CHECK(chosen(kNever, wide) == kNone);
  CHECK(chosen(92, {.statistics = true, .wide_weights = true}) ==
        ConvolutionFusion{.statistics = true, .wide_weights = true});
  CHECK(chosen(92, {.normalized = true, .statistics = true, .wide_weights = true}) == kBoth);
}

}  // namespace
}  // namespace annulus::test
