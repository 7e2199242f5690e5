// Every convolution of every model has a plan on an H200, in each precision and each pass.

#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <chrono>
#include <map>
#include <set>

#include "kernels/cuda/runtime/image_layout.h"
#include "kernels/cuda/vendor/cudnn_convolution_graph.h"
#include "kernels/operations/over_blocks.h"
#include "models/zoo/zoo.h"
#include "tests/gpu/plans/h200.h"

namespace annulus::test {
namespace {

using cuda::ConvolutionProblem;

// A common batch size for training the model.
std::size_t batch_of(const ZooEntry& model) {
  return model.image.height < 100 ? 64 : 256;
}

// The passes that training needs. The gradient of the network's images is not needed; others may have two sources.
std::vector<ConvolutionProblem> passes(const ConvolutionProblem& problem, bool of_images) {
  using enum cuda::BackwardData;
  std::vector<ConvolutionProblem> all{problem, problem.with(cuda::BackwardWeights::rounded)};
  if (!of_images) all.insert(all.end(), {problem.with(written), problem.with(added)});
  return all;
}

// By name, so that equal ones occur once.
std::map<std::string, ConvolutionProblem> problems(Precision precision) {
  std::map<std::string, ConvolutionProblem> all;
  for (const ZooEntry& model : zoo()) {
    const Graph graph = model.make(model.task());
    for (const Node& node : graph.nodes()) {
      const auto* convolution = std::get_if<Convolution>(&node.operation);
      if (convolution == nullptr) continue;
      const bool of_images = std::holds_alternative<ImageInput>(graph.node(node.inputs[0]).operation);
      const Shape images = graph.input_shapes(node, batch_of(model))[0];
      for (const ConvolutionProblem& problem : passes(forward_problem(*convolution, images, precision), of_images))
        all.emplace(to_string(problem), problem);
    }
  }
  return all;
}

// Models' first convolutions with a stride, by model, as they read pixel blocks.
std::map<std::string, ConvolutionProblem> problems_over_blocks(Precision precision) {
  std::map<std::string, ConvolutionProblem> all;
  for (const ZooEntry& model : zoo()) {
    const Graph graph = model.make(model.task());
    const Node& node = graph.nodes()[1];
    const auto* convolution = std::get_if<Convolution>(&node.operation);
    if (convolution == nullptr) continue;
    const Shape images = graph.input_shapes(node, batch_of(model))[0];
    const auto same = over_blocks(*convolution, images);
    if (!same) continue;
    const cuda::ImageBlocks blocks(images, convolution->stride, value_type(precision));
    all.emplace(model.name, forward_problem(*same, blocks.pixels().shape, precision));
  }
  return all;
}

// As from a tuning file: by its engine's number and knobs.
std::size_t workspace_of_rebuilt(const ConvolutionProblem& problem, const cuda::cudnn::Choice& choice) {
  const auto device = cuda::cudnn::device_properties(h200());
  const auto graph = cuda::convolution_graph(problem);
  const auto configuration = cuda::cudnn::configuration(graph, device, choice);
  return cuda::cudnn::workspace_bytes(cuda::cudnn::execution_plan(configuration, device, nullptr));
}

TEST_CASE("every convolution of every model has a plan on an H200") {
  using Clock = std::chrono::steady_clock;
  const auto planner = cuda::make_convolution_planner_for(h200());
  for (const Precision precision : kPrecisions) {
    const auto all = problems(precision);
    std::size_t largest = 0;
    std::pair<double, std::string> slowest;
    const auto begin = Clock::now();
    for (const auto& [name, problem] : all) {
      INFO(name);
      const auto before = Clock::now();
      const auto made = plan(*planner, problem);
      slowest = std::max(slowest, {std::chrono::duration<double>(Clock::now() - before).count(), name});
      largest = std::max(largest, made->workspace_bytes());
      CHECK(cuda::cudnn::objection(made->configuration(), precision) == "");
      CHECK(workspace_of_rebuilt(problem, made->configuration().choice) == made->workspace_bytes());
    }
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    fmt::print("{}: {} plans in {:.1f} s, the slowest in {:.2f} s ({}); workspaces of at most {} KiB\n",
               to_string(precision), all.size(), seconds, slowest.first, slowest.second, largest >> 10);
  }
}

TEST_CASE("first convolutions over blocks of pixels have plans on an A100, an H100 and an H200") {
  constexpr std::int64_t kHopper = 62;  // an engine with Hopper's instructions
  for (const char* const gpu : {"a100", "h100", "h200"}) {
    const auto planner = cuda::make_convolution_planner_for(description_of(gpu));
    for (const Precision precision : {Precision::bf16, Precision::fp16}) {
      const auto all = problems_over_blocks(precision);
      CHECK(all.contains("resnet50"));
      CHECK(all.contains("vit_b_16"));
      for (const auto& [model, problem] : all) {
        INFO(gpu << ", " << model << ": " << to_string(problem));
        const auto forward = plan(*planner, problem);
        const auto weights = plan(*planner, problem.with(cuda::BackwardWeights::rounded));
        CHECK(std::max(forward->workspace_bytes(), weights->workspace_bytes()) <= 64 << 20);
        if (gpu != std::string_view("a100") && model == "resnet50")
          CHECK(forward->configuration().choice.engine == kHopper);
      }
    }
  }
}

}  // namespace
}  // namespace annulus::test
