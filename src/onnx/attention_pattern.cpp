#include <cmath>
#include <numeric>

#include "src/onnx/layer_kinds.h"
#include "src/onnx/patterns.h"

// Self-attention in parts: products, a mask, a softmax.
namespace annulus {
namespace {

// A value with another value's elements, times a factor.
struct Rearranged {
  Value from;
  double factor = 1;
  std::vector<Value> steps{};  // the last step first
};

Rearranged rearranged(const GraphBuilder& builder, Value value) {
  Rearranged made{value};
  for (;; made.from = builder.layer(made.from).inputs[0]) {
    const Line scaled = line(builder, made.from);
    const bool moves = builder.computed_by<Reshape>(made.from) != nullptr ||
                       builder.computed_by<Transpose>(made.from) != nullptr ||
                       builder.computed_by<Slice>(made.from) != nullptr;
    if (!moves && (scaled.x == made.from || scaled.beta != 0)) return made;
    made.factor *= scaled.alpha;
    made.steps.push_back(made.from);
  }
}

// Elements in two images' queries, which positions() lists. Few bytes in a file can ask for many.
constexpr std::size_t kMostPositions = std::size_t{1} << 26;

// Returns each element's position in the value that they come from, row-major, for a batch of two.
std::vector<std::size_t> positions(const GraphBuilder& builder, const Rearranged& made) {
  Shape shape = builder.shape(made.from, 2);
  std::vector<std::size_t> found(elements(shape));
  std::iota(found.begin(), found.end(), std::size_t{0});
  for (auto step = made.steps.rbegin(); step != made.steps.rend(); ++step) {
    const Shape to = builder.shape(*step, 2);
    const auto* transpose = builder.computed_by<Transpose>(*step);
    const auto* slice = builder.computed_by<Slice>(*step);
    if (transpose != nullptr || slice != nullptr) {
      std::vector<std::size_t> strides(shape.size(), 1), index(to.size(), 0), moved(elements(to));
      for (std::size_t i = shape.size() - 1; i > 0; --i) strides[i - 1] = strides[i] * shape[i];
      for (std::size_t& element : moved) {
        std::size_t at = slice != nullptr ? slice->begin * strides[slice->axis] : 0;
        for (std::size_t i = 0; i < to.size(); ++i)
          at += index[i] * strides[transpose != nullptr ? transpose->order[i] : i];
        element = found[at];
        for (std::size_t i = to.size(); i-- > 0 && ++index[i] == to[i];) index[i] = 0;
      }
      found = std::move(moved);
    }
    shape = to;
  }
  return found;
}

// Whether a value {queries, keys} is 0 if the query may attend to the key, and, if the key comes later, so low that its
// weight is 0.
bool is_causal_mask(const GraphBuilder& builder, Value value, std::size_t length) {
  constexpr float kLow = -1e9f;
  const auto* mask = builder.computed_by<Constant>(value);
  if (mask == nullptr || mask->values.size() != length * length || mask->shape.back() != length) return false;
  for (std::size_t i = 0; i < mask->values.size(); ++i)
    if (i % length > i / length ? mask->values[i] > kLow : mask->values[i] != 0) return false;
  return true;
}

// Returns queries, keys and values for all heads, {batch, length, 3 width}: the parts of `from`, which may have its
// first two dimensions exchanged. A dense layer that computes `from` from exchanged values computes it from the
// original values instead.
std::optional<Value> batch_first(NodeReader& n, Value from) {
  const GraphBuilder& builder = n.builder();
  if (n.shape(from).size() != 3) return std::nullopt;
  if (builder.batch(from) == BatchPlace{0, 1}) return from;
  if (builder.batch(from) != BatchPlace{1, 1}) return std::nullopt;
  const std::vector<std::size_t> exchanged{1, 0, 2};
  const auto* linear = builder.computed_by<Linear>(from);
  const GraphBuilder::Layer layer = builder.layer(from);
  const auto* before = linear != nullptr ? builder.computed_by<Transpose>(layer.inputs[0]) : nullptr;
  if (before == nullptr || before->order != exchanged) return n.transpose(from, exchanged);
  const Value made = n.add(*linear, {builder.layer(layer.inputs[0]).inputs[0]}, layer.stored);
  n.builder().layer(made).name = layer.name;  // nothing reads the other layer any more
  return made;
}

// Queries x keys: a softmax computes attention weights from them.
struct Scores {
  Value queries, keys;  // the keys are transposed
  double scale;
  bool causal;
};

std::optional<Scores> scores_of(const GraphBuilder& builder, Value weights, std::size_t length) {
  if (builder.computed_by<Softmax>(weights) == nullptr) return std::nullopt;
  Value scores = builder.layer(weights).inputs[0];
  bool causal = false;
  if (is_arithmetic(builder, scores, Arithmetic::Operator::sum)) {
    const auto& terms = builder.layer(scores).inputs;
    causal = is_causal_mask(builder, terms[0], length) || is_causal_mask(builder, terms[1], length);
    if (!causal) return std::nullopt;
    scores = builder.computed_by<Constant>(terms[0]) != nullptr ? terms[1] : terms[0];
  }
  const Line scaled = line(builder, scores);
  if (scaled.beta != 0 || builder.computed_by<MatrixProduct>(scaled.x) == nullptr) return std::nullopt;
  const auto& factors = builder.layer(scaled.x).inputs;
  return Scores{factors[0], factors[1], scaled.alpha, causal};
}

Value attended(NodeReader& n, const Attention& operation, Value packed, const Shape& product) {
  const Value y = n.add(operation, {packed});
  const Shape shape = n.shape(y);
  const Value by_token = n.reshape(y, {shape[0], shape[1], operation.heads, shape[2] / operation.heads}, 0);
  return n.reshape(n.transpose(by_token, {0, 2, 1, 3}), product);
}

// Queries, keys and values within a single value.
std::optional<Value> attention_of_parts(NodeReader& n, const Scores& scores, Value values) {
  const GraphBuilder& builder = n.builder();
  const std::size_t length = n.shape(scores.keys).back(), each = n.shape(values).back();
  const Rearranged q = rearranged(builder, scores.queries);
  const Rearranged k = rearranged(builder, scores.keys), v = rearranged(builder, values);
  const double scale = scores.scale * q.factor * k.factor * std::sqrt(static_cast<double>(each));
  if (q.from != k.from || q.from != v.from || !near(scale, 1) || v.factor != 1) return std::nullopt;
  const std::size_t width = n.shape(q.from).back() / 3, heads = width / each;
  const bool exchanged = builder.batch(q.from) == BatchPlace{1, 1};
  const std::size_t size = 2 * length * width;
  if (width != heads * each || size > kMostPositions || elements(builder.shape(q.from, 2)) != 3 * size)
    return std::nullopt;
  const auto of_queries = positions(builder, q), of_keys = positions(builder, k), of_values = positions(builder, v);
  if (of_queries.size() != size || of_keys.size() != size || of_values.size() != size) return std::nullopt;
  std::size_t i = 0;
  for (std::size_t sample = 0; sample < 2; ++sample)
    for (std::size_t head = 0; head < heads; ++head)
      for (std::size_t token = 0; token < length; ++token)
        for (std::size_t feature = 0; feature < each; ++feature, ++i) {
          const std::size_t row = exchanged ? token * 2 + sample : sample * length + token;
          const std::size_t at = 3 * row * width + head * each + feature;
          const std::size_t turned = ((sample * heads + head) * each + feature) * length + token;
          if (of_queries[i] != at || of_keys[turned] != at + width || of_values[i] != at + 2 * width)
            return std::nullopt;
        }
  const auto x = batch_first(n, q.from);
  if (!x) return std::nullopt;
  return attended(n, Attention{heads, scores.causal}, *x, n.shape(values));
}

// Returns a value as it was before it was scaled.
Value unscaled(NodeReader& n, Value value, double& factor) {
  const Rearranged made = rearranged(n.builder(), value);
  factor *= made.factor;
  if (made.factor == 1) return value;
  Value x = made.from;
  for (auto step = made.steps.rbegin(); step != made.steps.rend(); ++step) {
    GraphBuilder::Layer layer = n.builder().layer(*step);
    if (line(n.builder(), *step).x != *step) continue;
    layer.inputs[0] = x;
    x = n.builder().add(std::move(layer));
  }
  return x;
}

// Exchanges the last two dimensions. Exporters may have joined the batch and the heads before they did that.
Value with_turned_matrices(NodeReader& n, Value x) {
  const GraphBuilder& builder = n.builder();
  const Shape shape = n.shape(x);
  if (builder.computed_by<Reshape>(x) != nullptr) {
    const Value inner = builder.layer(x).inputs[0];
    const auto* transpose = builder.computed_by<Transpose>(inner);
    const Shape joined = n.shape(inner);
    if (transpose != nullptr && transpose->order == std::vector<std::size_t>{0, 2, 1} && joined[1] == shape[2] &&
        joined[2] == shape[3])
      return n.reshape(builder.layer(inner).inputs[0], {shape[0], shape[1], shape[3], shape[2]}, 0);
  }
  return n.transpose(x, {0, 1, 3, 2});
}

// Separate queries, keys and values {batch, heads, length, width / heads}, which are packed for the operation.
std::optional<Value> attention_of_values(NodeReader& n, const Scores& scores, Value values) {
  const GraphBuilder& builder = n.builder();
  const Shape shape = n.shape(values);
  if (shape.size() != 4 || n.shape(scores.queries) != shape ||
      n.shape(scores.keys) != Shape{shape[0], shape[1], shape[3], shape[2]})
    return std::nullopt;
  for (const Value value : {scores.queries, scores.keys, values})
    if (builder.batch(value) != BatchPlace{0, 1} || n.shape(value)[0] != n.batch()) return std::nullopt;
  double scale = scores.scale * std::sqrt(static_cast<double>(shape[3]));
  const Value q = unscaled(n, scores.queries, scale);
  const Value k = with_turned_matrices(n, unscaled(n, scores.keys, scale));
  std::vector<Value> parts;
  for (const Value part : {q, k, values})
    parts.push_back(n.reshape(n.transpose(part, {0, 2, 1, 3}), {shape[0], shape[2], shape[1] * shape[3]}, 0));
  if (!near(scale, 1)) parts[0] = n.linear(parts[0], scale, 0);
  return attended(n, Attention{shape[1], scores.causal}, n.add(Concat{2}, parts), shape);
}

}  // namespace

std::optional<Value> attention(NodeReader& n, Value weights, Value values) {
  const auto scores = scores_of(n.builder(), weights, n.shape(weights).back());
  if (!scores) return std::nullopt;
  const auto packed = attention_of_parts(n, *scores, values);
  return packed ? packed : attention_of_values(n, *scores, values);
}

}  // namespace annulus
