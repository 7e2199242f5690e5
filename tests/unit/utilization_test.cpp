#include "src/step/utilization.h"

#include <catch2/catch.hpp>

#include "models/graph/cost.h"
#include "models/rewrites/freeze.h"
#include "models/zoo/zoo.h"

namespace annulus {

namespace {

std::uint64_t forward_flops(const Graph& graph, std::string_view node) {
  for (std::size_t i = 0; i < graph.nodes().size(); ++i)
    if (graph.nodes()[i].name == node) return node_costs(graph)[i].forward_flops;
  FAIL("no node " << node);
  return 0;
}

}  // namespace

TEST_CASE("utilization is the share of the peak that the model's FLOPs need") {
  const Utilization known{.sample_flops = 3e6, .peak_flops_per_second = 1e9};
  CHECK(known.share(100, 0.5) == 0.6);
  CHECK(known.share(50, 0.5) == 0.3);
  CHECK(known.share(0, 0.5) == 0.0);
  CHECK_FALSE(known.share(100, 0).has_value());
  CHECK(known.peak_text() == "1.0 GFLOP/s, the measured peak of all threads with float32 in registers");
  CHECK_FALSE(Utilization{.sample_flops = 3e6, .peak_flops_per_second = {}}.share(100, 0.5).has_value());
}

TEST_CASE("the peak of a node is what its processors can do, however many threads take turns on them") {
  const std::vector<double> one{250}, four{250, 250, 200, 150}, fastest_of_four{250, 250, 200, 150};
  const std::vector<double> two_threads{480}, fastest_of_two{250};
  CHECK(node_peak(one, one, 2) == 250);                     // a single thread on 2 processors
  CHECK(node_peak(two_threads, fastest_of_two, 2) == 480);  // a thread for each processor
  CHECK(node_peak(two_threads, fastest_of_two, 1) == 250);  // 2 threads on a single processor
  CHECK(node_peak(four, fastest_of_four, 2) == 500);        // twice as many ranks as processors
  CHECK(node_peak(four, fastest_of_four, 4) == 850);        // a processor for each
  CHECK(node_peak(two_threads, fastest_of_two, 0) == 480);  // unknown processors
}

TEST_CASE("training needs three times forward's FLOPs, fewer for frozen layers") {
  const Graph graph = make_model("lenet", neutral_task({28, 28, 1}, 10));
  const std::uint64_t forward = total_cost(graph).forward_flops;
  const std::uint64_t conv1 = forward_flops(graph, "conv1"), conv2 = forward_flops(graph, "conv2");
  const std::uint64_t fc3 = forward_flops(graph, "fc3");
  CHECK(total_cost(graph).training_flops == 3 * forward);
  // Below the lowest trained layer there is no backward pass.
  CHECK(total_cost(freeze(graph, {"conv1", "conv2"})).training_flops == 3 * forward - 2 * (conv1 + conv2));
  // Gradients pass through a frozen layer above trained ones, but it needs none for its weights.
  CHECK(total_cost(freeze(graph, {"fc3"})).training_flops == 3 * forward - fc3);
}

TEST_CASE("the FLOPs of a language model are those of its matrices, of attention and of its head") {
  const std::uint64_t length = 16, vocabulary = 300, width = 64, blocks = 2;
  const Graph graph = make_model("gpt-tiny", token_task({.length = length, .vocabulary = vocabulary}));
  // A multiply-add counts as 2; attention has two products, of which a causal one needs half.
  const std::uint64_t matrices = blocks * 12 * width * width + vocabulary * width;
  const std::uint64_t attention = blocks * 2 * length * width;
  CHECK(total_cost(graph).training_flops == length * 3 * (2 * matrices + attention));
}

}  // namespace annulus
