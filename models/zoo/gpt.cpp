#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "models/zoo/architectures.h"

// Radford et al., "Language models are unsupervised multitask learners", 2019 (GPT-2): a decoder of transformer blocks
// with layer norm before each half (pre-norm), whose head shares weights with the token embedding. Parameters are named
// as in Hugging Face's GPT2Model. Initial values as GPT-2's: std 0.02, and for the layers that end a residual branch
// 0.02 / sqrt(2 x blocks).

namespace annulus {
namespace {

constexpr float kStddev = 0.02f;

Value block(Graph& g, const std::string& name, const GptSize& size, Value x) {
  const float last = kStddev / std::sqrt(2 * static_cast<float>(size.layers));
  const auto norm = [&](const std::string& n, Value value) { return g.add(n, LayerNorm{.axis = 2}, {value}); };
  const auto linear = [&](const std::string& n, Value value, std::size_t units, float stddev) {
    return g.add(n, Linear{.units = units, .stddev = stddev, .transposed_in_file = true}, {value});
  };
  Value y = linear(name + ".attn.c_attn", norm(name + ".ln_1", x), 3 * size.width, kStddev);
  y = g.add(name + ".attn", Attention{.heads = size.heads, .causal = true}, {y});
  x = g.add(name + ".add1", Add{}, {linear(name + ".attn.c_proj", y, size.width, last), x});
  y = linear(name + ".mlp.c_fc", norm(name + ".ln_2", x), 4 * size.width, kStddev);
  y = g.add(name + ".mlp.act", Activation{.function = Activation::Function::gelu_tanh}, {y});
  return g.add(name + ".add2", Add{}, {linear(name + ".mlp.c_proj", y, size.width, last), x});
}

}  // namespace

Graph gpt(const Task& task, const GptSize& size) {
  const std::size_t length = task.tokens.length, vocabulary = task.tokens.vocabulary;
  Graph g(task.tokens);
  Value x = g.add("wte", TokenEmbedding{vocabulary, size.width, kStddev}, {Graph::kWindow});
  x = g.add("wpe", PositionEmbedding{std::max(size.context, length), kStddev}, {x});
  for (std::size_t i = 0; i < size.layers; ++i) x = block(g, fmt::format("h.{}", i), size, x);
  x = g.add("ln_f", LayerNorm{.axis = 2}, {x});
  g.add(Node{.name = "loss",
             .operation = LanguageModelHead{vocabulary, kStddev},
             .inputs = {x, Graph::kWindow},
             .shared = {{"weight", "wte.weight"}}});
  return g;
}

}  // namespace annulus
