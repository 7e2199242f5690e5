// The passes of batch norms that convolutions do: which of them have plans on an H200, and which are chosen.

#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <map>

#include "kernels/cuda/vendor/cudnn_tuning.h"
#include "models/fusion.h"
#include "models/zoo.h"
#include "tests/gpu/plans/h200.h"
#include "tests/unit/error_text.h"

namespace annulus::test {
namespace {

using Catch::Contains;
using cuda::ConvolutionFusion, cuda::ConvolutionProblem, cuda::ConvolutionTuning;
using Pass = ConvolutionProblem::Pass;

// The forward pass of every convolution of a model, with all that it could do for the batch norms beside it.
std::vector<ConvolutionProblem> fused_problems(const std::string& model, std::size_t batch) {
  const Graph graph = fuse(zoo_entry(model).make(zoo_entry(model).task()));
  const auto& nodes = graph.nodes();
  const auto pairs = find_pairs(graph), only_readers = find_only_readers(graph);
  std::vector<ConvolutionProblem> all;
  for (std::size_t i = 1; i < nodes.size(); ++i) {
    const auto* convolution = std::get_if<Convolution>(&nodes[i].operation);
    if (convolution == nullptr) continue;
    ConvolutionProblem problem = forward_problem(*convolution, graph.input_shapes(nodes[i], batch)[0], Precision::fp16);
    const auto* before = std::get_if<BatchNorm>(&nodes[i - 1].operation);
    problem.fusion = {.normalized = pairs[i - 1] && before != nullptr && before->relu,
                      .statistics = only_readers[i] && std::holds_alternative<BatchNorm>(nodes[i + 1].operation)};
    all.push_back(problem);
  }
  return all;
}

ConvolutionProblem backward_weights(ConvolutionProblem problem) {
  problem.pass = Pass::backward_weights;
  problem.fusion.statistics = false;
  return problem;
}

TEST_CASE("every convolution of ResNet-50 has fused plans in fp16 on an H200") {
  const auto planner = cuda::make_convolution_planner_for(h200());
  std::size_t statistics = 0, normalized = 0, largest = 0;
  for (const ConvolutionProblem& problem : fused_problems("resnet50", 256)) {
    const auto check = [&](const ConvolutionProblem& fused) {
      INFO(to_string(fused));
      const auto made = plan(*planner, fused);
      CHECK(made->workspace_bytes() <= std::size_t{64} << 20);
      largest = std::max(largest, made->workspace_bytes());
    };
    check(problem);
    if (problem.fusion.normalized) check(backward_weights(problem));
    statistics += problem.fusion.statistics ? 1 : 0;
    normalized += problem.fusion.normalized ? 1 : 0;
  }
  CHECK(statistics == 53);
  CHECK(normalized == 32);
  fmt::print(
      "ResNet-50, fp16: {} fused plans with statistics, {} with normalized inputs; workspaces of at most {} KiB\n",
      statistics, normalized, largest >> 10);
}

// The second convolution of a block, which can do passes of both batch norms beside it.
ConvolutionProblem problem() {
  return {Pass::forward, Precision::fp16, 256, 64, 56, 56, 64, 3, 1, 1};
}

constexpr ConvolutionFusion kNone{}, kStatistics{.statistics = true}, kBoth{.normalized = true, .statistics = true};

// The times of the passes, in microseconds; infinity if there is no plan.
struct Times {
  double plain, with_statistics, normalized, weights, normalized_weights, copy;
};

class File {
 public:
  explicit File(const Times& t) {
    const std::string platform = fmt::format("NVIDIA H200, cuDNN {}", cudnnGetVersion());
    ConvolutionTuning tuning(path(), platform);
    const auto add = [&](ConvolutionProblem p, const ConvolutionFusion& fusion, double microseconds) {
      p.fusion = fusion;
      tuning.add(to_string(p), {.microseconds = microseconds});
    };
    add(problem(), kNone, t.plain);
    add(problem(), kStatistics, t.with_statistics);
    add(problem(), kBoth, t.normalized);
    add(backward_weights(problem()), kNone, t.weights);
    add(backward_weights(problem()), {.normalized = true}, t.normalized_weights);
    tuning.add("copy of 102760448 bytes", {.microseconds = t.copy});
  }
  std::filesystem::path path() const { return folder_ / "tuning.json"; }

 private:
  TemporaryFolder folder_;
};

ConvolutionFusion chosen(const Times& times, const ConvolutionFusion& possible) {
  const File file(times);
  return cuda::make_convolution_planner_for(h200(), file.path())->choose_fusion(problem(), possible);
}

TEST_CASE("convolutions are fused if that was measured to be faster") {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  // Apart: 100 + 90 + a copy + half a copy. Statistics: 105 + 90 + a copy. Both: 130 + 120.
  CHECK(chosen({100, 105, 130, 90, 120, 60}, kBoth) == kBoth);
  CHECK(chosen({100, 105, 130, 90, 120, 54}, kBoth) == kStatistics);
  CHECK(chosen({100, 130, 170, 90, 120, 50}, kBoth) == kNone);
  CHECK(chosen({100, 105, 130, 90, 120, 50}, kStatistics) == kStatistics);
  CHECK(chosen({100, 105, 130, 90, 120, 8}, kStatistics) == kNone);
  CHECK(chosen({100, 105, 130, 90, kNever, 60}, kBoth) == kStatistics);
  CHECK(chosen({100, kNever, kNever, 90, 120, 50}, kBoth) == kNone);
  // Nothing is measured without a file, nor without a GPU.
  CHECK(cuda::make_convolution_planner_for(h200())->choose_fusion(problem(), kBoth) == kNone);
  const TemporaryFolder empty;
  const auto planner = cuda::make_convolution_planner_for(h200(), empty / "tuning.json");
  CHECK_THAT(error_of([&] { planner->choose_fusion(problem(), kBoth); }),
             Contains("there is no GPU here to measure on"));
}

}  // namespace
}  // namespace annulus::test
