#include <algorithm>

#include "kernels/base/error.h"
#include "src/onnx/fold.h"
#include "src/onnx/patterns.h"
#include "src/onnx/products.h"
#include "src/onnx/reader.h"

// Dense layers and matrix products.
namespace annulus {
namespace {

std::size_t features(const Shape& shape) {
  return shape.empty() ? 0 : shape.back();
}

// Returns the values {batch, length, features} that a network of tokens has joined to rows {batch x length, features}.
std::optional<Value> tokens_of_rows(NodeReader& n, Value x) {
  if (!n.task().reads_tokens() || n.builder().computed_by<Reshape>(x) == nullptr) return std::nullopt;
  const Value from = n.builder().layer(x).inputs[0];
  const Shape shape = n.shape(from);
  const bool joined = shape.size() == 3 && n.shape(x) == Shape{shape[0] * shape[1], shape[2]};
  return joined && n.builder().batch(from) == BatchPlace{0, 1} ? std::optional(from) : std::nullopt;
}

// x times the transposed weights {units, features}, plus a bias if there is any.
Value dense(NodeReader& n, Value x, const Stored& weight, std::size_t units, std::optional<Stored> bias) {
  std::vector<Stored> parameters{weight};
  if (bias) parameters.push_back(*bias);
  if (const auto tokens = tokens_of_rows(n, x)) {
    const Value y = dense(n, *tokens, weight, units, std::move(bias));
    return n.reshape(y, {n.shape(x)[0], units}, 0);
  }
  const auto place = n.builder().batch(x);
  const bool rows_are_images = n.shape(x).size() == 2 && place == BatchPlace{0, 1} && n.shape(x)[0] == n.batch();
  if (weight.named && weight.transposed)  // PyTorch's matrix is {features, units}
    return n.add(Linear{.units = units, .bias = bias.has_value(), .transposed_in_file = true}, {x}, parameters);
  if (rows_are_images) return n.add(Dense{.units = units, .bias = bias.has_value()}, {x}, parameters);
  return n.add(Linear{.units = units, .bias = bias.has_value()}, {x}, parameters);
}

// Multiplied by weights, a stored tensor is a table, such as Swin V2's coordinates.
constexpr const char* kTable = "an input of a layer";

// Multiplies two values. A vector is a row, or a column, and the product has no such dimension.
Value matrix_product(NodeReader& n, Value a, Value b) {
  const Shape of_a = n.shape(a), of_b = n.shape(b);
  if (of_a.size() > 1 && of_b.size() > 1) return stacked_product(n, a, b);
  if (of_a.empty() || of_b.empty()) fail("the product with a number is not supported: use Mul");
  if (of_a.size() == 1) a = n.reshape(a, {1, of_a[0]});
  if (of_b.size() == 1) b = n.reshape(b, {of_b[0], 1});
  const Value made = stacked_product(n, a, b);
  Shape shape = n.shape(made);
  auto place = n.builder().batch(made);
  std::optional<std::size_t> batch_axis;
  if (place) batch_axis = place->axis;
  if (of_b.size() == 1) shape.pop_back();
  if (of_a.size() == 1) {
    shape.erase(shape.end() - (of_b.size() == 1 ? 1 : 2));
    if (batch_axis && *batch_axis > shape.size() - 1) --*batch_axis;
  }
  return n.reshape(made, shape, batch_axis);
}

// Multiplies two values as Gemm does.
Value product_of_values(NodeReader& n) {
  Value a = n.value(0), b = n.value(1);
  if (n.attributes.whole("transA", 0) != 0) a = n.transpose(a, {1, 0});
  if (n.attributes.whole("transB", 0) != 0) b = n.transpose(b, {1, 0});
  const double beta = n.attributes.real("beta", 1);
  const Value made = n.linear(stacked_product(n, a, b), n.attributes.real("alpha", 1), 0);
  if (!n.has(2) || n.number(2) == 0 || beta == 0) return made;
  return n.combine(Arithmetic::Operator::sum, made, n.linear(n.value(2), beta, 0));
}

void read_gemm(NodeReader& n) {
  auto weight = n.stored(1);
  const double alpha = n.attributes.real("alpha", 1), beta = n.attributes.real("beta", 1);
  if (!weight) return n.set(product_of_values(n));
  Value x = n.table(0, kTable);
  if (n.shape(x).size() != 2) fail("its input of {} is not a matrix: use MatMul", n.text(x));
  if (n.attributes.whole("transA", 0) != 0) x = n.transpose(x, {1, 0});
  const bool rows = n.attributes.whole("transB", 0) != 0;  // the weights' rows are units
  const Shape shape = n.input_shape(1);
  if (shape.size() != 2 || features(n.shape(x)) != shape[rows ? 1 : 0])
    fail("its weights of {} do not fit its input of {}", to_string(shape), n.text(x));
  if (!rows) weight->transposed = !weight->transposed;
  x = n.linear(x, alpha, 0);
  const std::size_t units = shape[rows ? 0 : 1];
  if (!n.has(2) || n.number(2) == 0 || beta == 0) return n.set(dense(n, x, *weight, units, std::nullopt));
  if (const auto bias = n.stored(2); bias && beta == 1 && elements(n.input_shape(2)) == units)
    return n.set(dense(n, x, *weight, units, bias));
  n.set(n.combine(Arithmetic::Operator::sum, dense(n, x, *weight, units, std::nullopt), n.linear(n.value(2), beta, 0)));
}

void read_matrix_product(NodeReader& n) {
  auto weight = n.stored(1);
  // Computed weights are a dense layer's if the other input depends on the images.
  const bool computed = n.is_layer(0) && n.is_layer(1) && n.builder().batch(n.value(0)).has_value();
  if (!weight || n.input_shape(1).size() != 2 || (n.as<FileTensor>(1) == nullptr && !computed))
    return n.set(matrix_product(n, n.value(0), n.value(1)));
  const Shape shape = n.input_shape(1);
  const Value x = n.table(0, kTable);
  if (features(n.shape(x)) != shape[0])
    fail("its weights of {} do not fit its input of {}", to_string(shape), n.text(x));
  weight->transposed = !weight->transposed;
  n.set(dense(n, x, *weight, shape[1], std::nullopt));
}

// Returns the labels of an Einsum operand: "bij".
std::string labels(std::string text) {
  std::erase(text, ' ');
  if (text.find('.') != std::string::npos) fail("an ellipsis is not supported");
  return text;
}

Value in_order(NodeReader& n, Value x, const std::string& from, const std::string& to) {
  std::vector<std::size_t> order;
  for (const char label : to) {
    const std::size_t at = from.find(label);
    if (at == std::string::npos) fail("its equation is not supported: use MatMul");
    order.push_back(at);
  }
  if (order.size() != from.size()) fail("its equation is not supported: use MatMul");
  return n.transpose(x, order);
}

// Returns an Einsum operand as a stack of matrices: dimensions in an order, the last two groups joined.
Value as_matrices(NodeReader& n, Value x, const std::string& from, const std::string& stack, const std::string& rows,
                  const std::string& columns) {
  const Value ordered = in_order(n, x, from, stack + rows + columns);
  const Shape shape = n.shape(ordered);
  const auto end = shape.begin() + static_cast<std::ptrdiff_t>(stack.size());
  Shape matrices(shape.begin(), end);
  matrices.push_back(elements(Shape(end, end + static_cast<std::ptrdiff_t>(rows.size()))));
  matrices.push_back(elements(Shape(end + static_cast<std::ptrdiff_t>(rows.size()), shape.end())));
  return n.reshape(ordered, matrices);
}

// Products: dimensions of both operands are summed, or kept as a stack if the output has them.
Value einsum(NodeReader& n, const std::string& a, const std::string& b, const std::string& out) {
  std::string stack, summed, of_a, of_b;
  for (const char label : a) {
    const bool in_b = b.find(label) != std::string::npos, in_out = out.find(label) != std::string::npos;
    if (!in_b && !in_out) fail("it sums a dimension of one operand: use ReduceSum");
    (in_b ? in_out ? stack : summed : of_a) += label;
  }
  for (const char label : b)
    if (a.find(label) == std::string::npos) of_b += label;
  const Value x = n.value(0), y = n.value(1);
  const Value left = as_matrices(n, x, a, stack, of_a, summed), right = as_matrices(n, y, b, stack, summed, of_b);
  const Value made = stacked_product(n, left, right);
  const Shape joined = n.shape(made), of_x = n.shape(x), of_y = n.shape(y);
  Shape shape(joined.begin(), joined.end() - 2);
  for (const char label : of_a) shape.push_back(of_x[a.find(label)]);
  for (const char label : of_b) shape.push_back(of_y[b.find(label)]);
  return in_order(n, n.reshape(made, shape), stack + of_a + of_b, out);
}

void read_einsum(NodeReader& n) {
  const std::string equation = n.attributes.text("equation", "");
  const std::size_t arrow = equation.find("->"), comma = equation.find(',');
  if (arrow == std::string::npos) fail("its equation has no output");
  const std::string out = labels(equation.substr(arrow + 2));
  if (comma == std::string::npos) return n.set(in_order(n, n.value(0), labels(equation.substr(0, arrow)), out));
  const std::string a = labels(equation.substr(0, comma)), b = labels(equation.substr(comma + 1, arrow - comma - 1));
  if (n.inputs() != 2 || a.size() != n.input_shape(0).size() || b.size() != n.input_shape(1).size())
    fail("its equation does not fit its inputs");
  n.set(einsum(n, a, b, out));
}

}  // namespace

Value stacked_product(NodeReader& n, Value a, Value b) {
  Shape of_a = n.shape(a), of_b = n.shape(b);
  const std::size_t dimensions = std::max(of_a.size(), of_b.size());
  of_a.insert(of_a.begin(), dimensions - of_a.size(), 1);
  of_b.insert(of_b.begin(), dimensions - of_b.size(), 1);
  a = n.reshape(a, of_a);
  b = n.reshape(b, of_b);
  const auto stack = [](const Shape& shape) { return Shape(shape.begin(), shape.end() - 2); };
  Shape out = broadcast(stack(of_a), stack(of_b));
  const auto fitted = [&](Value x, const Shape& shape, const std::optional<BatchPlace>& other) {
    const bool repeat = !n.builder().batch(x) && other && other->axis < out.size();  // for every image
    if (stack(shape) == out && !repeat) return x;
    Shape wanted = out;
    wanted.insert(wanted.end(), shape.end() - 2, shape.end());
    return repeat ? n.expand_to_batch(x, wanted, *other) : n.expand(x, wanted);
  };
  const auto place_a = n.builder().batch(a), place_b = n.builder().batch(b);
  const bool both = place_a && place_b;
  if ((place_a && (place_a->axis + 1 == of_a.size() || (both && place_a->axis >= out.size()))) ||
      (place_b && (place_b->axis + 2 == of_b.size() || (both && place_b->axis >= out.size()))))
    fail("it mixes the images of a batch");
  a = fitted(a, of_a, place_b);
  b = fitted(b, of_b, place_a);
  if (const auto found = attention(n, a, b)) return *found;
  return n.add(MatrixProduct{}, {a, b});
}

void add_products(ReadNodes& all) {
  all["Gemm"] = read_gemm;
  all["MatMul"] = read_matrix_product;
  all["Einsum"] = read_einsum;
}

}  // namespace annulus
