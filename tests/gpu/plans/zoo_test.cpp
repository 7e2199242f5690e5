// Every convolution of every model has a plan on an H200, in each precision and each pass.

#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <chrono>
#include <map>
#include <set>

#include "kernels/cuda/vendor/cudnn_convolution_graph.h"
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
      for (const ConvolutionProblem& problem :
           passes(forward_problem(*convolution, graph.input_shapes(node, batch_of(model))[0], precision), of_images))
        all.emplace(to_string(problem), problem);
    }
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

}  // namespace
}  // namespace annulus::test
