// The problems that the convolution planner accepts and refuses, and its error messages.

#include <catch2/catch.hpp>

#include <algorithm>

#include "kernels/cuda/vendor/cudnn_convolution_graph.h"
#include "tests/gpu/plans/h200.h"
#include "tests/unit/error_text.h"

namespace annulus::test {
namespace {

using Catch::Contains;
using cuda::ConvolutionProblem, cuda::ConvolutionPass, cuda::Forward, cuda::BackwardData, cuda::BackwardWeights;

constexpr ConvolutionPass kPasses[] = {Forward{}, BackwardData::written, BackwardWeights::rounded};

ConvolutionProblem problem(const ConvolutionPass& pass, Precision precision) {
  return {pass,
          precision,
          /*batch*/ 32,
          /*channels*/ 64,
          /*height*/ 28,
          /*width*/ 28,
          /*filters*/ 128,
          /*kernel*/ 3,
          /*stride*/ 2,
          /*padding*/ 1};
}

// All of cuDNN's engines for a problem, allowed or not.
std::vector<cuda::cudnn::EngineConfiguration> engines(const ConvolutionProblem& problem) {
  const auto device = cuda::cudnn::device_properties(h200());
  const auto graph = cuda::convolution_graph(problem);
  auto all = cuda::cudnn::configurations(graph, device, CUDNN_HEUR_MODE_A);
  for (auto& more : cuda::cudnn::configurations(graph, device, CUDNN_HEUR_MODE_FALLBACK))
    all.push_back(std::move(more));
  return all;
}

TEST_CASE("fp32 does not use tensor cores, the other precisions may") {
  const auto planner = cuda::make_convolution_planner_for(h200());
  for (const ConvolutionPass& pass : kPasses)
    for (const Precision precision : kPrecisions) {
      INFO(to_string(problem(pass, precision)));
      const auto made = plan(*planner, problem(pass, precision));
      CHECK(made->configuration().has(CUDNN_NUMERICAL_NOTE_TENSOR_CORE) == (precision != Precision::fp32));
    }
}

TEST_CASE("nondeterministic engines are excluded") {
  const auto planner = cuda::make_convolution_planner_for(h200());
  std::size_t left_out = 0;
  for (const ConvolutionPass& pass : kPasses)
    for (const Precision precision : kPrecisions) {
      INFO(to_string(problem(pass, precision)));
      CHECK(!plan(*planner, problem(pass, precision))->configuration().has(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC));
      for (const auto& engine : engines(problem(pass, precision)))
        if (engine.has(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC)) {
          ++left_out;
          CHECK(cuda::cudnn::objection(engine, precision) == "its sums differ from run to run");
        }
    }
  CHECK(left_out > 0);
}

TEST_CASE("an impossible convolution is refused by name") {
  const auto planner = cuda::make_convolution_planner_for(h200());
  const auto refusal = [&](auto change) {
    ConvolutionProblem changed = problem(Forward{}, Precision::bf16);
    change(changed);
    return error_of([&] { planner->plan(changed); });
  };
  const std::string large = refusal([](auto& p) { p.kernel = 31; });
  CHECK_THAT(large, Contains("forward convolution in bf16, 32 x 28 x 28 x 64 by 128 filters of 31 x 31, stride 2"));
  CHECK_THAT(large, Contains("the kernel is larger than the image with its padding"));
  CHECK_THAT(refusal([](auto& p) { p.channels = 3; }), Contains("multiples of 8"));
  CHECK_THAT(refusal([](auto& p) { p.filters = 4; }), Contains("multiples of 8"));
  CHECK_THAT(refusal([](auto& p) { p.stride = 0; }), Contains("at least 1"));
  CHECK_THAT(refusal([](auto& p) { p.batch = 0; }), Contains("at least 1"));
  CHECK_THAT(refusal([](auto& p) { p.pass = BackwardWeights::wide; }), Contains("only a 1x1 kernel's weights"));
}

TEST_CASE("tuning files name a pass with all that it does") {
  const auto name = [](const ConvolutionPass& pass) {
    const std::string all = to_string(problem(pass, Precision::fp16));
    const std::string layer = " in fp16, 32 x 28 x 28 x 64 by 128 filters of 3 x 3, stride 2, padding 1";
    CHECK(all.ends_with(layer));
    return all.substr(0, all.size() - layer.size());
  };
  CHECK(name(Forward{}) == "forward convolution");
  CHECK(name(Forward{.statistics = true}) == "forward convolution with statistics");
  CHECK(name(Forward{Forward::normalized, true}) == "forward convolution of a normalized input with statistics");
  CHECK(name(Forward{Forward::block_end, true}) == "forward convolution that ends a block with statistics");
  CHECK(name(BackwardData::written) == "backward data convolution");
  CHECK(name(BackwardData::added) == "backward data convolution (added)");
  CHECK(name(BackwardData::summed) == "backward data convolution with gradient sums");
  CHECK(name(BackwardData::summed_elsewhere) == "backward data convolution (added) with gradient sums");
  CHECK(name(BackwardWeights::rounded) == "backward weights convolution");
  CHECK(name(BackwardWeights::of_normalized) == "backward weights convolution of a normalized input");
  CHECK(name(BackwardWeights::wide) == "backward weights convolution to float32");
}

TEST_CASE("a convolution that cuDNN cannot plan is refused with the reason") {
  const auto planner = cuda::make_convolution_planner_for(h200());
  ConvolutionProblem huge = problem(Forward{}, Precision::bf16);
  huge.batch = std::size_t{1} << 40;
  const std::string text = error_of([&] { planner->plan(huge); });
  CHECK_THAT(text, Contains("no plan for a forward convolution in bf16, 1099511627776 x 28 x 28 x 64"));
  CHECK_THAT(text, Contains("choose another precision or batch size"));
}

TEST_CASE("a plan for another GPU does not run") {
  const auto planner = cuda::make_convolution_planner_for(h200());
  const auto made = planner->plan(problem(Forward{}, Precision::bf16));
  CHECK_THAT(error_of([&] { made->run({}, nullptr, nullptr); }), Contains("cannot run"));
  CHECK_THAT(error_of([] { cuda::make_convolution_planner_for("an H200"); }), Contains("not a JSON object"));
}

}  // namespace
}  // namespace annulus::test
