#include "models/rewrites/recompute.h"

#include <catch2/catch.hpp>

#include "models/rewrites/transformer_dropout.h"
#include "src/onnx/network_file.h"
#include "tests/unit/small_network.h"
#include "tests/unit/test_device.h"

namespace annulus {
namespace {

using Names = std::vector<std::string>;

Graph gpt(std::size_t length) {
  Task task = default_task("gpt-tiny");
  task.tokens = {length, 50};
  return make_model("gpt-tiny", task);
}

Graph resnet(std::size_t size) {
  return make_model("resnet20", neutral_task({size, size, 3}, 10));
}

template <class Chosen>
Names names(const Graph& graph, const Chosen& chosen) {
  Names found;
  for (const Node& node : graph.nodes())
    if (chosen(node)) found.push_back(node.name);
  return found;
}

Names recomputed(const Graph& graph) {
  return names(recompute_blocks(graph), [](const Node& node) { return node.recomputed; });
}

// What two training steps leave behind, and the size of the activations.
struct Trained {
  std::vector<double> losses;
  std::vector<std::vector<std::byte>> memory;  // gradients, and weights with running statistics
  std::size_t activation_bytes;
};

template <class Load>
Trained train(const Graph& graph, std::size_t batch, const Load& load) {
  const auto device = test::make_device(1);
  Model model(*device, graph, Mode::training, batch);
  model.parameters().initialize(3);
  Network& network = model.network(Mode::training, batch);
  Trained trained;
  for (std::uint64_t step = 0; step < 2; ++step) {
    load(network, step);
    network.forward();
    network.backward(0.25f);
    trained.losses.push_back(network.loss().loss);
  }
  for (const DeviceView view : {model.parameters().gradients(), model.parameters().weights()})
    trained.memory.push_back(test::bytes_of(*device, view));
  if (const auto& gradient = network.embedding_gradient())
    trained.memory.push_back(test::bytes_of(*device, gradient->rows));
  trained.activation_bytes = network.activation_plan().bytes();
  return trained;
}

// Checks that a step gives the same bits with recomputed blocks. Returns the share of the activations' memory that it
// takes.
template <class Load>
double share_of_memory(const Graph& graph, std::size_t batch, const Load& load) {
  const Trained kept = train(graph, batch, load), sparing = train(recompute_blocks(graph), batch, load);
  CHECK(sparing.losses == kept.losses);
  CHECK(sparing.memory == kept.memory);
  return static_cast<double>(sparing.activation_bytes) / static_cast<double>(kept.activation_bytes);
}

constexpr std::size_t kBatch = 4;

void load_text(Network& network, std::uint64_t step) {
  const std::size_t length = network.spec(Graph::kWindow).shape[1];
  test::load_windows(network, test::random_labels(kBatch * length, 50, 10 + step),
                     test::random_labels(kBatch, 1 << 30, 20 + step));
}

}  // namespace

TEST_CASE("all of a network's residual blocks but the last are recomputed") {
  CHECK(recomputed(gpt(8)) == Names{"h.0.ln_1", "h.0.attn.c_attn", "h.0.attn", "h.0.attn.c_proj", "h.0.ln_2",
                                    "h.0.mlp.c_fc", "h.0.mlp.act", "h.0.mlp.c_proj", "h.1.ln_1", "h.1.attn.c_attn",
                                    "h.1.attn", "h.1.attn.c_proj"});
  const Names of_resnet = recomputed(resnet(8));
  CHECK(of_resnet.front() == "layer1.0.conv1");
  for (const std::string& name : of_resnet) CHECK(name.find("bn") == std::string::npos);
  for (const char* chain : {"lenet", "vgg16"})
    CHECK_THROWS_WITH(recompute_blocks(make_model(chain, default_task(chain))),
                      "--recompute blocks: this model has no residual blocks; leave it out");
}

TEST_CASE("steps with recomputed blocks are bit-identical and take less memory") {
  CHECK(share_of_memory(gpt(64), kBatch, load_text) < 0.75);
  CHECK(share_of_memory(add_transformer_dropout(gpt(64), 0.5f), kBatch, load_text) < 0.75);
  const Graph images = resnet(8);
  const auto load_images = [&images](Network& network, std::uint64_t step) {
    const test::Samples samples(images, kBatch, 10, 30 + step);
    network.load(samples.images, {samples.labels});
  };
  CHECK(share_of_memory(images, kBatch, load_images) < 0.9);
}

TEST_CASE("dropout of attention weights, at the end of residual branches and after the embedding") {
  const Graph dropping = add_transformer_dropout(gpt(8), 0.25f);
  const auto is_dropout = [](const Node& node) { return std::holds_alternative<Dropout>(node.operation); };
  CHECK(names(dropping, is_dropout) == Names{"wpe.dropout", "h.0.attn.c_proj.dropout", "h.0.mlp.c_proj.dropout",
                                             "h.1.attn.c_proj.dropout", "h.1.mlp.c_proj.dropout"});
  std::uint32_t number = 0;
  for (const Node& node : dropping.nodes()) {
    if (const auto* dropout = std::get_if<Dropout>(&node.operation)) {
      CHECK(dropout->rate == 0.25f);
      CHECK(dropout->number == number++);
    }
    if (const auto* attention = std::get_if<Attention>(&node.operation)) {
      CHECK(attention->dropout == 0.25f);
      CHECK(attention->number == number++);
    }
  }
  CHECK(number == 7);
  CHECK(train(dropping, kBatch, load_text).losses != train(gpt(8), kBatch, load_text).losses);
  CHECK_THROWS_WITH(add_transformer_dropout(resnet(8), 0.25f),
                    "--dropout: this model has no transformer blocks; leave it out");
}

}  // namespace annulus
