#include <cmath>
#include <limits>
#include <optional>

#include "kernels/base/error.h"
#include "src/onnx/batch_constants.h"
#include "src/onnx/masks.h"
#include "src/onnx/products.h"
#include "src/onnx/reader.h"

// Attention and rotary positions as single nodes (operator set 23), read in parts.
namespace annulus {
namespace {

using enum Arithmetic::Operator;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::size_t heads(NodeReader& n, const char* attribute) {
  const std::int64_t count = n.attributes.whole(attribute, 0);
  if (count < 1) fail("its {} is {}: it must be given for inputs of three dimensions", attribute, count);
  return static_cast<std::size_t>(count);
}

// Returns queries, keys or values {batch, heads, length, width}; an input with three dimensions has the heads in the
// last.
Value by_head(NodeReader& n, std::size_t input, const char* attribute) {
  const Value x = n.value(input);
  const Shape shape = n.shape(x);
  if (shape.size() == 4) return x;
  if (shape.size() != 3) fail("its input {} of {} must have 3 or 4 dimensions", input, n.text(x));
  const std::size_t count = heads(n, attribute);
  if (shape[2] % count != 0) fail("its input {} of {} cannot be divided into {} heads", input, n.text(x), count);
  return n.transpose(n.reshape(x, {shape[0], shape[1], count, shape[2] / count}, 0), {0, 2, 1, 3});
}

// Repeats each head (keys or values) for a group of query heads.
Value for_queries(NodeReader& n, Value x, std::size_t query_heads) {
  const std::size_t own = n.shape(x)[1];
  if (own == query_heads) return x;
  if (query_heads % own != 0) fail("its {} heads of queries are not groups of {} heads", query_heads, own);
  std::vector<std::size_t> indices;
  for (std::size_t i = 0; i < query_heads; ++i) indices.push_back(i * own / query_heads);
  return n.gather(x, 1, indices);
}

// Lets a query attend to the keys up to its own position.
Value causal_mask(NodeReader& n, std::size_t queries, std::size_t keys) {
  if (queries > kMostConstantElements / keys) fail("its mask of {}x{} is too large", queries, keys);
  HostTensor mask = real_numbers({queries, keys}, {});
  for (std::size_t q = 0; q < queries; ++q)
    for (std::size_t k = 0; k < keys; ++k) mask.reals.push_back(k > q ? -kInfinity : 0);
  return constant(n, std::move(mask));
}

// Truths as numbers to be added: they keep scores.
HostTensor added_numbers(const HostTensor& mask) {
  HostTensor numbers = real_numbers(mask.shape, {});
  for (const std::int64_t keep : mask.wholes) numbers.reals.push_back(keep != 0 ? 0 : -kInfinity);
  return numbers;
}

// The input attn_mask as numbers to be added; nothing if all are 0.
std::optional<Value> added_mask(NodeReader& n) {
  const Host mask = n.constant(3);
  if (mask == nullptr) {
    const Value computed = n.value(3);
    if (is_truth(n.builder(), computed)) fail("its mask is computed from the images: add minus infinity with Where");
    return computed;
  }
  const bool truths = mask->kind == HostTensor::Kind::truth;
  if (n.number(3) == (truths ? 1 : 0)) return std::nullopt;
  if (!truths) return n.value(3);
  return constant(n, for_batches(added_numbers(*mask), added_numbers(for_other_batch(*mask))));
}

Value masked(NodeReader& n, Value scores) {
  const Shape shape = n.shape(scores);
  const bool causal = n.attributes.whole("is_causal", 0) != 0;
  if (!n.has(3)) return causal ? n.combine(sum, scores, causal_mask(n, shape[2], shape[3])) : scores;
  if (const auto mask = added_mask(n)) {
    if (n.shape(*mask).empty() || n.shape(*mask).back() != shape[3])
      fail("its mask of {} does not fit scores of {}", n.text(*mask), n.text(scores));
    scores = n.combine(sum, scores, *mask);
  }
  return causal ? n.combine(sum, scores, causal_mask(n, shape[2], shape[3])) : scores;
}

void read_attention(NodeReader& n) {
  if (n.has(4) || n.has(5) || n.has(6)) fail("keys and values of earlier calls are not supported: export it without");
  for (const std::size_t output : {1, 2, 3})
    if (n.used(output)) fail("only its first output is supported");
  const bool flat = n.input_shape(0).size() == 3;
  const Value q = by_head(n, 0, "q_num_heads");
  const std::size_t count = n.shape(q)[1];
  const Value k = for_queries(n, by_head(n, 1, "kv_num_heads"), count);
  const Value v = for_queries(n, by_head(n, 2, "kv_num_heads"), count);
  const double missing = 1 / std::sqrt(static_cast<double>(n.shape(q)[3]));
  const double scale = n.attributes.has("scale") ? n.attributes.real("scale", 1) : missing;
  Value scores = n.linear(stacked_product(n, q, n.transpose(k, {0, 1, 3, 2})), scale, 0);
  if (const double cap = n.attributes.real("softcap", 0); cap > 0)
    scores = n.linear(n.function(Activation::Function::tanh, n.linear(scores, 1 / cap, 0)), cap, 0);
  const Value weights = without_masked_rows(n, n.add(Softmax{}, {masked(n, scores)}));
  const Value y = stacked_product(n, weights, v);
  if (!flat) return n.set(y);
  const Shape shape = n.shape(y);
  n.set(n.reshape(n.transpose(y, {0, 2, 1, 3}), {shape[0], shape[2], shape[1] * shape[3]}, 0));
}

// Returns the cosines or sines for the first `half` features of each position, {1 or batch, 1, length, half}.
Value rotary_table(NodeReader& n, std::size_t input, std::size_t length, std::size_t half) {
  std::vector<Host> tables{n.constant(input)};
  if (tables[0] == nullptr) fail("its input {} must be constant: register it as a buffer, then export again", input);
  if (n.has(3)) {
    tables.push_back(n.constant(3));
    if (tables[1] == nullptr) fail("its positions depend on the network's input: only constant ones are supported");
    const auto rows = evaluate_for_batches("Gather", n.attributes, tables);
    tables[0] = std::make_shared<const HostTensor>(*rows);
  }
  HostTensor table = tables[0]->other_batch != nullptr ? per_image(*tables[0], n.batch()).values : *tables[0];
  const Shape shape = table.shape;
  if (shape.size() != 3 || shape[1] != length || shape[2] < half)
    fail("its input {} of {} does not have {} numbers for {} positions", input, to_string(shape), half, length);
  table.shape = {shape[0], 1, length, shape[2]};
  return n.slice(constant(n, std::move(table)), 3, 0, half);
}

// Turns pairs of features: (x, y) becomes (x cos - y sin, x sin + y cos).
Value turned(NodeReader& n, Value x, bool interleaved) {
  const Shape shape = n.shape(x);
  const std::size_t half = shape[3] / 2;
  std::vector<std::size_t> places(half);
  const auto part = [&](std::size_t second) {
    for (std::size_t i = 0; i < half; ++i) places[i] = interleaved ? 2 * i + second : second * half + i;
    return n.gather(x, 3, places);
  };
  const Value first = part(0), second = part(1);
  const Value cosines = rotary_table(n, 1, shape[2], half), sines = rotary_table(n, 2, shape[2], half);
  const Value a = n.combine(difference, n.combine(product, first, cosines), n.combine(product, second, sines));
  const Value b = n.combine(sum, n.combine(product, first, sines), n.combine(product, second, cosines));
  if (!interleaved) return n.add(Concat{3}, {a, b});
  const Shape single{shape[0], shape[1], shape[2], half, 1};
  return n.reshape(n.add(Concat{4}, {n.reshape(a, single, 0), n.reshape(b, single, 0)}), shape, 0);
}

void read_rotary_embedding(NodeReader& n) {
  const bool flat = n.input_shape(0).size() == 3;
  const Value x = by_head(n, 0, "num_heads");
  const Shape shape = n.shape(x);
  const std::int64_t given = n.attributes.whole("rotary_embedding_dim", 0);
  const std::size_t turns = given == 0 ? shape[3] : static_cast<std::size_t>(given);
  if (given < 0 || turns > shape[3] || turns % 2 != 0)
    fail("its {} turned features are not an even number of {}", given == 0 ? shape[3] : turns, shape[3]);
  Value y = turned(n, n.slice(x, 3, 0, turns), n.attributes.whole("interleaved", 0) != 0);
  if (turns < shape[3]) y = n.add(Concat{3}, {y, n.slice(x, 3, turns, shape[3] - turns)});
  if (!flat) return n.set(y);
  n.set(n.reshape(n.transpose(y, {0, 2, 1, 3}), {shape[0], shape[2], shape[1] * shape[3]}, 0));
}

}  // namespace

void add_attention(ReadNodes& all) {
  all["RotaryEmbedding"] = read_rotary_embedding;
  all["Attention"] = read_attention;
}

}  // namespace annulus
