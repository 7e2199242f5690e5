// cuDNN has a plan for the attention of every transformer, forward and backward.

#include <fmt/format.h>
#include <catch2/catch.hpp>

#include "kernels/cuda/vendor/cudnn_attention.h"
#include "models/zoo/zoo.h"
#include "tests/gpu/plans/h200.h"
#include "tests/unit/error_text.h"

namespace annulus::test {
namespace {

using cuda::AttentionProblem;
using Pass = AttentionProblem::Pass;

constexpr std::size_t kBatch = 12;

AttentionProblem problem(const Shape& input, const Attention& operation, Pass pass, Precision precision) {
  const std::size_t width = input[2] / 3;
  return {.pass = pass,
          .precision = precision,
          .causal = operation.causal,
          .batch = input[0],
          .heads = operation.heads,
          .length = input[1],
          .each = width / operation.heads,
          .input_row = input[2],
          .output_row = width};
}

// The attention of a model, whose layers are equal.
AttentionProblem problem(const std::string& model, Pass pass, Precision precision) {
  const ZooEntry& entry = zoo_entry(model);
  const Graph graph = entry.make(entry.task());
  for (const Node& node : graph.nodes())
    if (const auto* operation = std::get_if<Attention>(&node.operation))
      return problem(graph.input_shapes(node, kBatch)[0], *operation, pass, precision);
  FAIL(model << " has no attention");
  return {};
}

void check_plans(const char* gpu, const std::string& model, const std::vector<Pass>& passes, Precision precision) {
  const auto planner = cuda::make_attention_planner_for(description_of(gpu));
  for (const Pass pass : passes) {
    const AttentionProblem p = problem(model, pass, precision);
    const auto made = planner->plan(p);
    CAPTURE(gpu, model, static_cast<int>(pass), to_string(precision));
    REQUIRE(made);
    const auto& configuration = dynamic_cast<const cuda::CudnnAttentionPlan&>(*made).configuration();
    CHECK(cuda::cudnn::objection(configuration, precision) == "");
    // Backward keeps one matrix of weights of each head, in 16 bits if the length is a multiple of the engines' tiles.
    const std::size_t weights = p.batch * p.heads * p.length * p.length, bytes = made->workspace_bytes();
    if (pass != Pass::backward)
      CHECK(bytes <= 1024);
    else if (p.length % 64 == 0)
      CHECK((bytes >= 2 * weights && bytes <= 2 * weights + 1024));
    else
      CHECK(bytes <= 8 * weights);
    fmt::print("{}, {}, {}: workspace of {} bytes on {}\n", model, pass == Pass::backward ? "backward" : "forward",
               to_string(precision), bytes, gpu);
  }
}

TEST_CASE("attention has plans on an H100 and an H200") {
  for (const char* gpu : {"h100", "h200"})
    for (const char* model : {"nanogpt", "gpt2", "gpt2-medium", "vit_s_16", "vit_b_16"})
      check_plans(gpu, model, {Pass::forward, Pass::backward}, Precision::bf16);
  check_plans("h200", "nanogpt", {Pass::inference, Pass::forward, Pass::backward}, Precision::fp16);
}

TEST_CASE("attention has plans on an A100") {
  for (const char* model : {"nanogpt", "gpt2", "vit_s_16", "vit_b_16"})
    check_plans("a100", model, {Pass::forward, Pass::backward}, Precision::bf16);
}

TEST_CASE("attention that cuDNN cannot plan has no plan") {
  const auto planner = cuda::make_attention_planner_for(h200());
  const Attention causal{.heads = 2, .causal = true};
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    CHECK(!planner->plan(problem({4, 64, 384}, causal, pass, Precision::fp32)));
    CHECK(!planner->plan(problem({4, 64, 384}, causal, pass, Precision::tf32)));
    CHECK(!planner->plan(problem({4, 64, 3 * 2 * 12}, causal, pass, Precision::bf16)));   // unaligned heads
    CHECK(!planner->plan(problem({4, 64, 3 * 2 * 136}, causal, pass, Precision::bf16)));  // wide ones
    CHECK(!planner->plan(problem({4, 1, 384}, causal, pass, Precision::bf16)));           // a single key
  }
  // More than the limit of the workspace.
  CHECK(!planner->plan(problem({1024, 1024, 384}, causal, Pass::backward, Precision::bf16)));
}

// From Blackwell on, cuDNN's deterministic backward pass has other settings.
TEST_CASE("attention has no backward plan on a GPU on which it may not be deterministic") {
  std::string later = h200();
  later.replace(later.find("\"deviceVer\": 900"), 16, "\"deviceVer\": 1000");
  const auto planner = cuda::make_attention_planner_for(later);
  CHECK(!planner->plan(problem("nanogpt", Pass::backward, Precision::bf16)));
}

TEST_CASE("attention that is planned for another GPU does not run") {
  const auto made = cuda::make_attention_planner_for(h200())->plan(problem("nanogpt", Pass::forward, Precision::bf16));
  CHECK_THAT(error_of([&] { made->run({}, nullptr, nullptr); }), Catch::Contains("cannot run"));
}

}  // namespace
}  // namespace annulus::test
