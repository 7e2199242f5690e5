#include "src/onnx/fold.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>

#include "kernels/base/error.h"
#include "src/onnx/fold_rules.h"

namespace annulus {
namespace {

using Inputs = FoldInputs;
using Indices = std::vector<std::size_t>;

const std::vector<std::int64_t>& wholes(const Inputs& inputs, std::size_t i) {
  if (input(inputs, i).real()) fail("its input {} must be whole numbers", i);
  return input(inputs, i).wholes;
}

// An input, or an attribute as in earlier operator sets.
std::vector<std::int64_t> wholes_or(const Inputs& inputs, std::size_t i, const Attributes& attributes,
                                    const char* attribute) {
  return has(inputs, i) ? wholes(inputs, i) : attributes.wholes(attribute);
}

Shape checked_size(Shape shape) {
  std::size_t all = 1;
  for (const std::size_t extent : shape) {
    if (extent > kMostConstantElements || (extent > 0 && all > kMostConstantElements / extent))
      fail("it computes a constant of too many elements");
    all *= extent;
  }
  return shape;
}

Shape shape_from(const std::vector<std::int64_t>& extents) {
  for (const std::int64_t extent : extents)
    if (extent < 0) fail("a shape has the extent {}", extent);
  return checked_size({extents.begin(), extents.end()});
}

// Copies a tensor's elements in another order.
HostTensor pick(const HostTensor& from, Shape shape, const Indices& indices) {
  HostTensor to{from.kind, std::move(shape), {}, {}};
  for (const std::size_t i : indices) {
    if (from.real())
      to.reals.push_back(from.reals[i]);
    else
      to.wholes.push_back(from.wholes[i]);
  }
  return to;
}

Indices strides(const Shape& shape) {
  Indices all(shape.size(), 1);
  for (std::size_t i = shape.size(); i-- > 1;) all[i - 1] = all[i] * shape[i];
  return all;
}

// For every element of `out`, row-major, `offset` plus the sum over dimensions of table[dimension][position].
Indices walk(const Shape& out, const std::vector<Indices>& tables) {
  Indices all{0};
  for (std::size_t d = 0; d < out.size(); ++d) {
    Indices next;
    next.reserve(all.size() * out[d]);
    for (const std::size_t base : all)
      for (std::size_t i = 0; i < out[d]; ++i) next.push_back(base + tables[d][i]);
    all = std::move(next);
  }
  return all;
}

Indices multiples(std::size_t count, std::size_t of) {
  Indices all(count);
  for (std::size_t i = 0; i < count; ++i) all[i] = i * of;
  return all;
}

Indices broadcast_indices(const Shape& in, const Shape& out) {
  const Indices steps = strides(in);
  const std::size_t missing = out.size() - in.size();
  std::vector<Indices> tables;
  for (std::size_t d = 0; d < out.size(); ++d)
    tables.push_back(multiples(out[d], d < missing || in[d - missing] == 1 ? 0 : steps[d - missing]));
  return walk(out, tables);
}

HostTensor expanded(const HostTensor& from, const Shape& shape) {
  const Shape out = checked_size(broadcast(from.shape, shape));
  return pick(from, out, broadcast_indices(from.shape, out));
}

// Keeps the elements at `indices` in a dimension.
HostTensor gathered(const HostTensor& from, std::size_t axis, const Indices& indices) {
  const Indices steps = strides(from.shape);
  Shape out = from.shape;
  out[axis] = indices.size();
  checked_size(out);
  std::vector<Indices> tables;
  for (std::size_t d = 0; d < out.size(); ++d) tables.push_back(multiples(out[d], steps[d]));
  for (std::size_t i = 0; i < indices.size(); ++i) tables[axis][i] = indices[i] * steps[axis];
  return pick(from, out, walk(out, tables));
}

HostTensor with_shape(HostTensor tensor, Shape shape) {
  tensor.shape = std::move(shape);
  return tensor;
}

// Drops the fraction. Numbers beyond the integers become the nearest integer, and NaN becomes 0.
std::int64_t to_whole(double value) {
  if (std::isnan(value)) return 0;
  return static_cast<std::int64_t>(std::clamp(value, -0x1p63, 0x1.fffffffffffffp62));
}

HostTensor converted(HostTensor from, std::int64_t type) {
  using Type = onnx::TensorProto;
  const bool real = type == Type::FLOAT || type == Type::DOUBLE || type == Type::FLOAT16 || type == Type::BFLOAT16;
  if (real && !from.real()) {
    from.reals.assign(from.wholes.begin(), from.wholes.end());
    from.wholes.clear();
  } else if (!real && from.real()) {
    for (const double value : from.reals) from.wholes.push_back(type == Type::BOOL ? value != 0 : to_whole(value));
    from.reals.clear();
  }
  if (type == Type::BOOL)
    for (std::int64_t& value : from.wholes) value = value != 0;
  from.kind = real ? HostTensor::Kind::real : type == Type::BOOL ? HostTensor::Kind::truth : HostTensor::Kind::whole;
  return from;
}

// Operators on pairs of elements.

template <class Compute>
HostTensor combine(const HostTensor& a, const HostTensor& b, const Compute& compute) {
  const Shape out = checked_size(broadcast(a.shape, b.shape));
  const Indices from_a = broadcast_indices(a.shape, out), from_b = broadcast_indices(b.shape, out);
  HostTensor to{a.real() || b.real() ? HostTensor::Kind::real : HostTensor::Kind::whole, out, {}, {}};
  for (std::size_t i = 0; i < from_a.size(); ++i) {
    if (to.real())
      to.reals.push_back(compute(a.at(from_a[i]), b.at(from_b[i])));
    else
      to.wholes.push_back(compute(a.wholes[from_a[i]], b.wholes[from_b[i]]));
  }
  return to;
}

template <class Compare>
HostTensor compare(const Inputs& inputs, const Compare& compare_values) {
  const HostTensor &a = input(inputs, 0), &b = input(inputs, 1);
  const Shape out = checked_size(broadcast(a.shape, b.shape));
  const Indices from_a = broadcast_indices(a.shape, out), from_b = broadcast_indices(b.shape, out);
  HostTensor to{HostTensor::Kind::truth, out, {}, {}};
  for (std::size_t i = 0; i < from_a.size(); ++i) to.wholes.push_back(compare_values(a.at(from_a[i]), b.at(from_b[i])));
  return to;
}

std::int64_t floor_mod(std::int64_t a, std::int64_t b) {
  const std::int64_t rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

// Wraps around like the runtime's integers, without undefined behaviour.
template <class Compute>
struct Wrapping {
  double operator()(double a, double b) const { return Compute{}(a, b); }
  std::int64_t operator()(std::int64_t a, std::int64_t b) const {
    return static_cast<std::int64_t>(Compute{}(static_cast<std::uint64_t>(a), static_cast<std::uint64_t>(b)));
  }
};

struct Divide {
  double operator()(double a, double b) const { return a / b; }
  std::int64_t operator()(std::int64_t a, std::int64_t b) const {
    if (b == 0) fail("it divides by 0");
    return b == -1 ? Wrapping<std::minus<>>{}(0, a) : a / b;
  }
};

struct Modulo {
  double operator()(double a, double b) const { return std::fmod(a, b); }
  std::int64_t operator()(std::int64_t a, std::int64_t b) const {
    if (b == 0) fail("it divides by 0");
    return b == -1 ? 0 : floor_mod(a, b);
  }
};

struct Power {
  double operator()(double a, double b) const { return std::pow(a, b); }
  std::int64_t operator()(std::int64_t a, std::int64_t b) const {
    return to_whole(std::pow(static_cast<double>(a), static_cast<double>(b)));
  }
};

struct Larger {
  double operator()(double a, double b) const { return std::max(a, b); }
  std::int64_t operator()(std::int64_t a, std::int64_t b) const { return std::max(a, b); }
};

struct Smaller {
  double operator()(double a, double b) const { return std::min(a, b); }
  std::int64_t operator()(std::int64_t a, std::int64_t b) const { return std::min(a, b); }
};

template <class Compute>
HostTensor pairwise(const Attributes&, const Inputs& inputs) {
  HostTensor result = input(inputs, 0);
  for (std::size_t i = 1; i < inputs.size(); ++i) result = combine(result, input(inputs, i), Compute{});
  return result;
}

template <class Compare>
HostTensor comparison(const Attributes&, const Inputs& inputs) {
  return compare(inputs, Compare{});
}

template <double (*compute)(double)>
HostTensor each(const Attributes&, const Inputs& inputs) {
  HostTensor to = input(inputs, 0);
  for (double& value : to.reals) value = compute(value);
  return to;
}

HostTensor absolute(const Attributes&, const Inputs& inputs) {
  HostTensor to = input(inputs, 0);
  for (double& value : to.reals) value = std::fabs(value);
  for (std::int64_t& value : to.wholes)
    if (value < 0) value = static_cast<std::int64_t>(-static_cast<std::uint64_t>(value));
  return to;
}

HostTensor negative(const Attributes&, const Inputs& inputs) {
  HostTensor to = input(inputs, 0);
  for (double& value : to.reals) value = -value;
  for (std::int64_t& value : to.wholes) value = static_cast<std::int64_t>(-static_cast<std::uint64_t>(value));
  return to;
}

HostTensor opposite(const Attributes&, const Inputs& inputs) {
  HostTensor to = input(inputs, 0);
  for (std::int64_t& value : to.wholes) value = value == 0;
  return to;
}

HostTensor sign(const Attributes&, const Inputs& inputs) {
  HostTensor to = input(inputs, 0);
  for (double& value : to.reals) value = value > 0 ? 1 : value < 0 ? -1 : value;
  for (std::int64_t& value : to.wholes) value = value > 0 ? 1 : value < 0 ? -1 : 0;
  return to;
}

HostTensor relu(const Attributes&, const Inputs& inputs) {
  HostTensor to = input(inputs, 0);
  for (double& value : to.reals) value = value < 0 ? 0 : value;
  for (std::int64_t& value : to.wholes) value = std::max<std::int64_t>(value, 0);
  return to;
}

template <class Test>
HostTensor test_reals(const HostTensor& from, const Test& test) {
  HostTensor to{HostTensor::Kind::truth, from.shape, {}, {}};
  for (std::size_t i = 0; i < from.size(); ++i) to.wholes.push_back(test(from.at(i)));
  return to;
}

HostTensor is_nan(const Attributes&, const Inputs& inputs) {
  return test_reals(input(inputs, 0), [](double value) { return std::isnan(value); });
}

HostTensor is_inf(const Attributes& attributes, const Inputs& inputs) {
  const bool negative = attributes.whole("detect_negative", 1) != 0;
  const bool positive = attributes.whole("detect_positive", 1) != 0;
  return test_reals(input(inputs, 0),
                    [=](double value) { return std::isinf(value) && (value < 0 ? negative : positive); });
}

HostTensor exclusive_or(const Attributes&, const Inputs& inputs) {
  return compare(inputs, [](double a, double b) { return (a != 0) != (b != 0); });
}

double reciprocal(double value) {
  return 1 / value;
}

double sigmoid(double value) {
  return 1 / (1 + std::exp(-value));
}

HostTensor same(const Attributes&, const Inputs& inputs) {
  return input(inputs, 0);
}

HostTensor constant(const Attributes& attributes, const Inputs&) {
  if (const onnx::TensorProto* tensor = attributes.tensor("value")) {
    expect_data(*tensor);
    return read_tensor(*tensor);
  }
  if (attributes.has("value_int")) return whole_numbers({}, {attributes.whole("value_int", 0)});
  if (attributes.has("value_float")) return real_numbers({}, {attributes.real("value_float", 0)});
  if (attributes.has("value_ints")) {
    const auto values = attributes.wholes("value_ints");
    return whole_numbers({values.size()}, values);
  }
  if (attributes.has("value_floats")) {
    const auto values = attributes.reals("value_floats");
    return real_numbers({values.size()}, {values.begin(), values.end()});
  }
  fail("a constant of this kind is not supported: use numbers");
}

HostTensor concat(const Attributes& attributes, const Inputs& inputs) {
  const HostTensor& first = input(inputs, 0);
  const std::size_t axis = checked_axis(attributes.whole("axis", 0), first.shape.size());
  Shape out = first.shape;
  out[axis] = 0;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    Shape shape = input(inputs, i).shape;
    if (shape.size() != out.size() || input(inputs, i).kind != first.kind) fail("its inputs do not fit each other");
    out[axis] += std::exchange(shape[axis], first.shape[axis]);
    if (shape != first.shape) fail("its inputs do not fit each other");
  }
  HostTensor to{first.kind, checked_size(out), {}, {}};
  if (elements(out) == 0) return to;
  const std::size_t rows = elements(Shape(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(axis)));
  for (std::size_t row = 0; row < rows; ++row)
    for (const HostTensor* part : inputs) {
      const auto length = static_cast<std::ptrdiff_t>(part->size() / rows);
      const auto begin = static_cast<std::ptrdiff_t>(row) * length;
      if (part->real())
        to.reals.insert(to.reals.end(), part->reals.begin() + begin, part->reals.begin() + begin + length);
      else
        to.wholes.insert(to.wholes.end(), part->wholes.begin() + begin, part->wholes.begin() + begin + length);
    }
  return to;
}

Indices checked_indices(const std::vector<std::int64_t>& indices, std::size_t extent) {
  Indices checked;
  for (const std::int64_t index : indices) checked.push_back(checked_axis(index, extent));
  return checked;
}

HostTensor gather(const Attributes& attributes, const Inputs& inputs) {
  const HostTensor& from = input(inputs, 0);
  const std::size_t axis = checked_axis(attributes.whole("axis", 0), from.shape.size());
  const HostTensor to = gathered(from, axis, checked_indices(wholes(inputs, 1), from.shape[axis]));
  Shape shape = from.shape;
  const auto at = shape.erase(shape.begin() + static_cast<std::ptrdiff_t>(axis));
  shape.insert(at, inputs[1]->shape.begin(), inputs[1]->shape.end());
  return with_shape(to, shape);
}

// The slices that rows of `indices` select: where each begins, their shape and their size.
struct Selection {
  Indices begins;
  Shape slice;
};

Selection select(const Shape& data, const HostTensor& indices) {
  if (indices.shape.empty() || indices.real()) fail("its indices do not fit");
  const std::size_t depth = indices.shape.back();
  if (depth == 0 || depth > data.size()) fail("its indices do not fit");
  const Indices steps = strides(data);
  Selection selection{{}, Shape(data.begin() + static_cast<std::ptrdiff_t>(depth), data.end())};
  for (std::size_t row = 0; row < indices.wholes.size() / depth; ++row) {
    std::size_t begin = 0;
    for (std::size_t d = 0; d < depth; ++d) begin += checked_axis(indices.wholes[row * depth + d], data[d]) * steps[d];
    selection.begins.push_back(begin);
  }
  return selection;
}

HostTensor gather_nd(const Attributes& attributes, const Inputs& inputs) {
  if (attributes.whole("batch_dims", 0) != 0) fail("batch_dims are not supported");
  const HostTensor &from = input(inputs, 0), &indices = input(inputs, 1);
  const Selection selection = select(from.shape, indices);
  Shape out(indices.shape.begin(), indices.shape.end() - 1);
  out.insert(out.end(), selection.slice.begin(), selection.slice.end());
  out = checked_size(out);
  Indices picked;
  for (const std::size_t begin : selection.begins)
    for (std::size_t i = 0; i < elements(selection.slice); ++i) picked.push_back(begin + i);
  return pick(from, out, picked);
}

HostTensor scatter_nd(const Attributes& attributes, const Inputs& inputs) {
  if (attributes.text("reduction", "none") != "none") fail("a reduction is not supported");
  HostTensor to = input(inputs, 0);
  const HostTensor& updates = input(inputs, 2);
  const Selection selection = select(to.shape, input(inputs, 1));
  const std::size_t length = elements(selection.slice);
  if (updates.size() != selection.begins.size() * length || updates.real() != to.real()) fail("its updates do not fit");
  for (std::size_t row = 0; row < selection.begins.size(); ++row)
    for (std::size_t i = 0; i < length; ++i) {
      if (to.real())
        to.reals[selection.begins[row] + i] = updates.reals[row * length + i];
      else
        to.wholes[selection.begins[row] + i] = updates.wholes[row * length + i];
    }
  return to;
}

HostTensor slice(const Attributes& attributes, const Inputs& inputs) {
  HostTensor to = input(inputs, 0);
  const auto starts = wholes_or(inputs, 1, attributes, "starts"), ends = wholes_or(inputs, 2, attributes, "ends");
  const auto axes = wholes_or(inputs, 3, attributes, "axes");
  const auto steps = has(inputs, 4) ? wholes(inputs, 4) : std::vector<std::int64_t>(starts.size(), 1);
  if (ends.size() != starts.size() || steps.size() != starts.size() || (!axes.empty() && axes.size() != starts.size()))
    fail("its starts, ends, axes and steps do not fit each other");
  for (std::size_t i = 0; i < starts.size(); ++i) {
    const auto axis = checked_axis(axes.empty() ? static_cast<std::int64_t>(i) : axes[i], to.shape.size());
    to = gathered(to, axis, stride_of(starts[i], ends[i], steps[i], to.shape[axis]).indices());
  }
  return to;
}

HostTensor squeeze(const Attributes& attributes, const Inputs& inputs) {
  Shape shape = input(inputs, 0).shape;
  const auto axes = squeezed_axes(shape, wholes_or(inputs, 1, attributes, "axes"));
  for (std::size_t i = axes.size(); i-- > 0;) shape.erase(shape.begin() + static_cast<std::ptrdiff_t>(axes[i]));
  return with_shape(input(inputs, 0), shape);
}

HostTensor unsqueeze(const Attributes& attributes, const Inputs& inputs) {
  return with_shape(input(inputs, 0), unsqueezed(input(inputs, 0).shape, wholes_or(inputs, 1, attributes, "axes")));
}

HostTensor reshape(const Attributes& attributes, const Inputs& inputs) {
  const HostTensor& from = input(inputs, 0);
  return with_shape(from, reshaped(from.shape, wholes(inputs, 1), attributes.whole("allowzero", 0) != 0));
}

HostTensor flatten(const Attributes& attributes, const Inputs& inputs) {
  const HostTensor& from = input(inputs, 0);
  const std::int64_t axis = attributes.whole("axis", 1);
  const auto rank = static_cast<std::int64_t>(from.shape.size());
  if (axis < -rank || axis > rank) fail("it has no dimension {}", axis);
  const auto split = from.shape.begin() + (axis < 0 ? axis + rank : axis);
  return with_shape(from, {elements(Shape(from.shape.begin(), split)), elements(Shape(split, from.shape.end()))});
}

HostTensor transpose(const Attributes& attributes, const Inputs& inputs) {
  const HostTensor& from = input(inputs, 0);
  auto order = attributes.wholes("perm");
  for (std::size_t i = from.shape.size(); order.size() < from.shape.size();)
    order.push_back(static_cast<std::int64_t>(--i));
  const Indices steps = strides(from.shape);
  Shape out;
  std::vector<Indices> tables;
  for (const std::int64_t dimension : order) {
    const std::size_t d = checked_axis(dimension, from.shape.size());
    out.push_back(from.shape[d]);
    tables.push_back(multiples(from.shape[d], steps[d]));
  }
  if (elements(out) != from.size()) fail("its perm does not fit {}", to_string(from.shape));
  return pick(from, out, walk(out, tables));
}

HostTensor cast(const Attributes& attributes, const Inputs& inputs) {
  return converted(input(inputs, 0), attributes.whole("to", onnx::TensorProto::FLOAT));
}

HostTensor cast_like(const Attributes&, const Inputs& inputs) {
  using enum HostTensor::Kind;
  const auto kind = input(inputs, 1).kind;
  return converted(input(inputs, 0), kind == real    ? onnx::TensorProto::FLOAT
                                     : kind == truth ? onnx::TensorProto::BOOL
                                                     : onnx::TensorProto::INT64);
}

HostTensor range(const Attributes&, const Inputs& inputs) {
  const HostTensor &start = input(inputs, 0), &limit = input(inputs, 1), &delta = input(inputs, 2);
  const bool numbers = start.size() == 1 && limit.size() == 1 && delta.size() == 1;
  if (!numbers || start.real() != delta.real() || delta.at(0) == 0) fail("its inputs do not fit");
  const double count = std::ceil((limit.at(0) - start.at(0)) / delta.at(0));
  if (!(count <= static_cast<double>(kMostConstantElements))) fail("it computes a constant of too many elements");
  HostTensor to{start.kind, {count > 0 ? static_cast<std::size_t>(count) : 0}, {}, {}};
  for (std::size_t i = 0; i < to.shape[0]; ++i) {
    if (to.real())
      to.reals.push_back(start.reals[0] + static_cast<double>(i) * delta.at(0));
    else
      to.wholes.push_back(start.wholes[0] + static_cast<std::int64_t>(i) * delta.wholes[0]);
  }
  return to;
}

HostTensor constant_of_shape(const Attributes& attributes, const Inputs& inputs) {
  HostTensor value = real_numbers({}, {0});
  if (const onnx::TensorProto* tensor = attributes.tensor("value")) {
    expect_data(*tensor);
    value = read_tensor(*tensor);
  }
  if (value.size() != 1) fail("its value must be one number");
  value.shape = {};
  return expanded(value, shape_from(wholes(inputs, 0)));
}

HostTensor expand(const Attributes&, const Inputs& inputs) {
  return expanded(input(inputs, 0), shape_from(wholes(inputs, 1)));
}

HostTensor where(const Attributes&, const Inputs& inputs) {
  const HostTensor &condition = input(inputs, 0), &yes = input(inputs, 1), &no = input(inputs, 2);
  const Shape out = checked_size(broadcast(condition.shape, broadcast(yes.shape, no.shape)));
  const HostTensor c = expanded(condition, out), a = expanded(yes, out), b = expanded(no, out);
  if (c.real() || a.real() != b.real()) fail("its inputs do not fit each other");
  HostTensor to = b;
  for (std::size_t i = 0; i < c.size(); ++i) {
    if (c.wholes[i] == 0) continue;
    if (to.real())
      to.reals[i] = a.reals[i];
    else
      to.wholes[i] = a.wholes[i];
  }
  return to;
}

// Multiplies all elements.
HostTensor product_of_elements(const Attributes& attributes, const Inputs& inputs) {
  const HostTensor& from = input(inputs, 0);
  const auto axes = wholes_or(inputs, 1, attributes, "axes");
  if (from.shape.size() > 1 || axes.size() > 1) fail("a product over some of several dimensions is not supported");
  const Shape shape = attributes.whole("keepdims", 1) != 0 ? Shape(from.shape.size(), 1) : Shape{};
  if (from.real())
    return real_numbers(shape, {std::accumulate(from.reals.begin(), from.reals.end(), 1.0, std::multiplies{})});
  return whole_numbers(
      shape, {std::accumulate(from.wholes.begin(), from.wholes.end(), std::int64_t{1}, Wrapping<std::multiplies<>>{})});
}

HostTensor tile(const Attributes&, const Inputs& inputs) {
  HostTensor to = input(inputs, 0);
  const auto& repeats = wholes(inputs, 1);
  if (repeats.size() != to.shape.size()) fail("its repeats do not fit {}", to_string(to.shape));
  for (std::size_t d = 0; d < repeats.size(); ++d) {
    if (repeats[d] < 0) fail("its repeats are negative");
    const Shape sized = checked_size({to.shape[d], static_cast<std::size_t>(repeats[d])});
    Indices indices;
    for (std::size_t i = 0; i < elements(sized); ++i) indices.push_back(i % to.shape[d]);
    to = gathered(to, d, indices);
  }
  return to;
}

FoldRules basic_rules() {
  return {
      {"Abs", absolute},
      {"Add", pairwise<Wrapping<std::plus<>>>},
      {"And", comparison<std::logical_and<>>},
      {"Cast", cast},
      {"CastLike", cast_like},
      {"Ceil", each<std::ceil>},
      {"Concat", concat},
      {"Constant", constant},
      {"ConstantOfShape", constant_of_shape},
      {"Cos", each<std::cos>},
      {"Div", pairwise<Divide>},
      {"Equal", comparison<std::equal_to<>>},
      {"Erf", each<std::erf>},
      {"Exp", each<std::exp>},
      {"Expand", expand},
      {"Flatten", flatten},
      {"Floor", each<std::floor>},
      {"Gather", gather},
      {"GatherND", gather_nd},
      {"Greater", comparison<std::greater<>>},
      {"GreaterOrEqual", comparison<std::greater_equal<>>},
      {"Identity", same},
      {"IsInf", is_inf},
      {"IsNaN", is_nan},
      {"Less", comparison<std::less<>>},
      {"LessOrEqual", comparison<std::less_equal<>>},
      {"Log", each<std::log>},
      {"Max", pairwise<Larger>},
      {"Min", pairwise<Smaller>},
      {"Mod", pairwise<Modulo>},
      {"Mul", pairwise<Wrapping<std::multiplies<>>>},
      {"Neg", negative},
      {"Not", opposite},
      {"Or", comparison<std::logical_or<>>},
      {"Pow", pairwise<Power>},
      {"Range", range},
      {"Reciprocal", each<reciprocal>},
      {"ReduceProd", product_of_elements},
      {"Reshape", reshape},
      {"Relu", relu},
      {"Round", each<std::nearbyint>},
      {"ScatterND", scatter_nd},
      {"Sigmoid", each<sigmoid>},
      {"Sign", sign},
      {"Sin", each<std::sin>},
      {"Slice", slice},
      {"Sqrt", each<std::sqrt>},
      {"Squeeze", squeeze},
      {"Sub", pairwise<Wrapping<std::minus<>>>},
      {"Tanh", each<std::tanh>},
      {"Tile", tile},
      {"Transpose", transpose},
      {"Unsqueeze", unsqueeze},
      {"Where", where},
      {"Xor", exclusive_or},
  };
}

const FoldRules& rules() {
  static const FoldRules all = [] {
    FoldRules rules = basic_rules();
    add_scan_rules(rules);
    return rules;
  }();
  return all;
}

}  // namespace

const HostTensor& input(const FoldInputs& inputs, std::size_t i) {
  if (i >= inputs.size() || inputs[i] == nullptr) fail("it has no input {}", i);
  return *inputs[i];
}

bool has(const FoldInputs& inputs, std::size_t i) {
  return i < inputs.size() && inputs[i] != nullptr;
}

std::size_t checked_axis(std::int64_t axis, std::size_t dimensions) {
  const auto count = static_cast<std::int64_t>(dimensions);
  if (axis < -count || axis >= count) fail("there is no element {} among {}", axis, dimensions);
  return static_cast<std::size_t>(axis < 0 ? axis + count : axis);
}

Shape broadcast(const Shape& a, const Shape& b) {
  if (a.size() < b.size()) return broadcast(b, a);
  Shape out = a;
  const std::size_t missing = a.size() - b.size();
  for (std::size_t i = 0; i < b.size(); ++i) {
    std::size_t& extent = out[missing + i];
    if (extent != b[i] && extent != 1 && b[i] != 1) fail("{} and {} do not fit each other", to_string(a), to_string(b));
    if (extent == 1) extent = b[i];
  }
  return out;
}

Shape reshaped(const Shape& from, const std::vector<std::int64_t>& target, bool zero_is_zero) {
  Shape out;
  std::optional<std::size_t> inferred;
  std::size_t known = 1;
  for (std::size_t i = 0; i < target.size(); ++i) {
    const bool copied = target[i] == 0 && !zero_is_zero;
    if (target[i] < -1 || (target[i] == -1 && inferred) || (copied && i >= from.size()))
      fail("its shape has an unexpected extent {}", target[i]);
    if (target[i] == -1) inferred = i;
    out.push_back(target[i] == -1 ? 1 : copied ? from[i] : static_cast<std::size_t>(target[i]));
    if (out.back() > kMostConstantElements) fail("its shape has the extent {}", out.back());
    if (out.back() > 0 && known > std::numeric_limits<std::size_t>::max() / out.back()) fail("its shape is too large");
    known *= out.back();
  }
  const std::size_t all = elements(from);
  if (inferred && known > 0) out[*inferred] = all / known;
  if (elements(out) != all) fail("{} cannot be reshaped to {}", to_string(from), to_string(out));
  return out;
}

std::vector<std::size_t> Stride::indices() const {
  if (count > kMostConstantElements) fail("it selects {} elements of a dimension, which are too many", count);
  std::vector<std::size_t> all;
  for (std::size_t i = 0; i < count; ++i)
    all.push_back(static_cast<std::size_t>(begin + static_cast<std::int64_t>(i) * step));
  return all;
}

Stride stride_of(std::int64_t start, std::int64_t end, std::int64_t step, std::size_t extent) {
  const auto size = static_cast<std::int64_t>(extent);
  if (step == 0 || step == std::numeric_limits<std::int64_t>::min()) fail("it has a step of {}", step);
  const auto clamped = [&](std::int64_t at) {
    if (at < 0) at = at < -size ? -1 : at + size;
    return step > 0 ? std::clamp<std::int64_t>(at, 0, size) : std::clamp<std::int64_t>(at, -1, size - 1);
  };
  const std::int64_t first = clamped(start < -size && step > 0 ? 0 : start), last = clamped(end);
  const std::int64_t distance = step > 0 ? last - first : first - last, stride = step > 0 ? step : -step;
  return {first, step, distance > 0 ? static_cast<std::size_t>((distance - 1) / stride + 1) : 0};
}

std::vector<std::size_t> squeezed_axes(const Shape& shape, const std::vector<std::int64_t>& axes) {
  std::vector<std::size_t> all;
  if (axes.empty())
    for (std::size_t i = 0; i < shape.size(); ++i)
      if (shape[i] == 1) all.push_back(i);
  for (const std::int64_t axis : axes) all.push_back(checked_axis(axis, shape.size()));
  std::ranges::sort(all);
  all.erase(std::unique(all.begin(), all.end()), all.end());
  for (const std::size_t axis : all)
    if (shape[axis] != 1) fail("{} has no single element in dimension {}", to_string(shape), axis);
  return all;
}

Shape unsqueezed(const Shape& shape, const std::vector<std::int64_t>& axes) {
  Shape out = shape;
  std::vector<std::size_t> all;
  for (const std::int64_t axis : axes) all.push_back(checked_axis(axis, shape.size() + axes.size()));
  std::ranges::sort(all);
  if (std::ranges::adjacent_find(all) != all.end()) fail("it adds a dimension twice");
  for (const std::size_t axis : all) out.insert(out.begin() + static_cast<std::ptrdiff_t>(axis), 1);
  return out;
}

std::vector<std::size_t> split_sizes(std::size_t extent, const std::vector<std::int64_t>& sizes, std::size_t parts) {
  std::vector<std::size_t> all;
  std::size_t sum = 0;
  for (const std::int64_t size : sizes) {
    if (size < 0 || static_cast<std::size_t>(size) > extent) fail("its parts do not add up to {} elements", extent);
    all.push_back(static_cast<std::size_t>(size));
    sum += all.back();
  }
  if (sizes.empty() && parts > 0) {
    const std::size_t most = (extent + parts - 1) / parts;
    for (; sum < extent; sum += all.back()) all.push_back(std::min(most, extent - sum));
  }
  if (sum != extent || (parts > 0 && all.size() != parts)) fail("its parts do not add up to {} elements", extent);
  return all;
}

std::optional<HostTensor> evaluate(const std::string& op, const Attributes& attributes,
                                   const std::vector<const HostTensor*>& inputs) {
  const auto rule = rules().find(op);
  if (rule == rules().end()) return std::nullopt;
  return rule->second(attributes, inputs);
}

}  // namespace annulus
