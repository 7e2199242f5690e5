#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/base/error.h"
#include "src/onnx/fold.h"
#include "src/onnx/fold_rules.h"

namespace annulus {
namespace {

std::int64_t whole(const FoldInputs& inputs, std::size_t i) {
  const HostTensor& tensor = input(inputs, i);
  if (tensor.real() || tensor.size() != 1) fail("its input {} must be one whole number", i);
  return tensor.wholes[0];
}

// Whole numbers' sums wrap around.
double plus(double a, double b) {
  return a + b;
}
std::int64_t plus(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}

// A tensor's dimension: element i of a line is at begin + i * step.
struct Lines {
  std::size_t extent, step;
  std::vector<std::size_t> begins;

  Lines(const Shape& shape, std::size_t axis) : extent(shape[axis]), step(1) {
    for (std::size_t i = axis + 1; i < shape.size(); ++i) step *= shape[i];
    const std::size_t all = elements(shape), outer = extent == 0 ? 0 : all / (extent * step);
    for (std::size_t i = 0; i < outer; ++i)
      for (std::size_t k = 0; k < step; ++k) begins.push_back(i * extent * step + k);
  }
};

template <class Number>
void add_up(std::vector<Number>& values, const Lines& lines, bool reverse, bool exclusive) {
  for (const std::size_t begin : lines.begins) {
    Number sum{};
    for (std::size_t i = 0; i < lines.extent; ++i) {
      Number& value = values[begin + (reverse ? lines.extent - 1 - i : i) * lines.step];
      const Number own = value;
      value = exclusive ? sum : plus(sum, own);
      sum = plus(sum, own);
    }
  }
}

HostTensor cumulative_sum(const Attributes& attributes, const FoldInputs& inputs) {
  HostTensor to = input(inputs, 0);
  const Lines lines(to.shape, checked_axis(whole(inputs, 1), to.shape.size()));
  const bool reverse = attributes.whole("reverse", 0) != 0, exclusive = attributes.whole("exclusive", 0) != 0;
  to.real() ? add_up(to.reals, lines, reverse, exclusive) : add_up(to.wholes, lines, reverse, exclusive);
  return to;
}

// Keeps the upper or lower triangle of matrices; the rest becomes 0.
HostTensor triangle(const Attributes& attributes, const FoldInputs& inputs) {
  HostTensor to = input(inputs, 0);
  if (to.shape.size() < 2) fail("its input is not a matrix");
  const bool upper = attributes.whole("upper", 1) != 0;
  const std::int64_t diagonal = has(inputs, 1) ? std::clamp<std::int64_t>(whole(inputs, 1), -(1 << 30), 1 << 30) : 0;
  const std::size_t columns = to.shape.back(), rows = to.shape[to.shape.size() - 2];
  for (std::size_t i = 0; i < to.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i / columns % rows), column = static_cast<std::int64_t>(i % columns);
    if (upper ? column - row >= diagonal : column - row <= diagonal) continue;
    if (to.real())
      to.reals[i] = 0;
    else
      to.wholes[i] = 0;
  }
  return to;
}

// Returns the place in `data` for element i of `places`, with `axis` replaced by the place's value.
std::size_t place_in(const Shape& data, const HostTensor& places, std::size_t i, std::size_t axis) {
  std::size_t at = 0, step = 1, rest = i;
  for (std::size_t d = data.size(); d-- > 0; step *= data[d]) {
    const std::size_t index = rest % places.shape[d];
    rest /= places.shape[d];
    at += step * (d == axis ? checked_axis(places.wholes[i], data[d]) : index);
  }
  return at;
}

const HostTensor& expect_places(const Shape& data, const FoldInputs& inputs, std::size_t axis) {
  const HostTensor& places = input(inputs, 1);
  bool fits = !places.real() && places.shape.size() == data.size();
  for (std::size_t d = 0; fits && d < data.size(); ++d) fits = d == axis || places.shape[d] <= data[d];
  if (!fits) fail("its indices of {} do not fit {}", to_string(places.shape), to_string(data));
  return places;
}

HostTensor gather_elements(const Attributes& attributes, const FoldInputs& inputs) {
  const HostTensor& from = input(inputs, 0);
  const std::size_t axis = checked_axis(attributes.whole("axis", 0), from.shape.size());
  const HostTensor& places = expect_places(from.shape, inputs, axis);
  HostTensor to{from.kind, places.shape, {}, {}};
  for (std::size_t i = 0; i < places.size(); ++i) {
    const std::size_t at = place_in(from.shape, places, i, axis);
    if (from.real())
      to.reals.push_back(from.reals[at]);
    else
      to.wholes.push_back(from.wholes[at]);
  }
  return to;
}

HostTensor scatter_elements(const Attributes& attributes, const FoldInputs& inputs) {
  HostTensor to = input(inputs, 0);
  const std::size_t axis = checked_axis(attributes.whole("axis", 0), to.shape.size());
  const HostTensor &places = expect_places(to.shape, inputs, axis), &updates = input(inputs, 2);
  if (updates.shape != places.shape || updates.real() != to.real()) fail("its inputs do not fit each other");
  const std::string how = attributes.text("reduction", "none");
  if (how != "none" && how != "add") fail("its reduction \"{}\" is not supported: use add", how);
  for (std::size_t i = 0; i < places.size(); ++i) {
    const std::size_t at = place_in(to.shape, places, i, axis);
    if (to.real())
      to.reals[at] = plus(updates.reals[i], how == "add" ? to.reals[at] : 0);
    else
      to.wholes[at] = plus(updates.wholes[i], how == "add" ? to.wholes[at] : 0);
  }
  return to;
}

// Returns the dimensions that a reduction goes over, ascending.
std::vector<std::size_t> reduced_axes(const Attributes& attributes, const FoldInputs& inputs, std::size_t dimensions) {
  const auto wanted = has(inputs, 1) ? input(inputs, 1).wholes : attributes.wholes("axes");
  std::vector<std::size_t> axes;
  for (const std::int64_t axis : wanted) axes.push_back(checked_axis(axis, dimensions));
  if (wanted.empty() && attributes.whole("noop_with_empty_axes", 0) == 0)
    for (std::size_t i = 0; i < dimensions; ++i) axes.push_back(i);
  std::ranges::sort(axes);
  if (std::ranges::adjacent_find(axes) != axes.end()) fail("it reduces a dimension twice");
  return axes;
}

// Replaces each line of a dimension by a number.
template <class Combine>
HostTensor reduce(const Attributes& attributes, const FoldInputs& inputs, const Combine& combine) {
  HostTensor to = input(inputs, 0);
  const auto axes = reduced_axes(attributes, inputs, to.shape.size());
  for (const std::size_t axis : axes) {
    if (to.shape[axis] == 0) fail("it reduces a dimension without elements");
    const Lines lines(to.shape, axis);
    const auto fold = [&](auto& values) {
      auto reduced = values;
      reduced.clear();
      for (const std::size_t begin : lines.begins) {
        auto result = values[begin];
        for (std::size_t i = 1; i < lines.extent; ++i) result = combine(result, values[begin + i * lines.step]);
        reduced.push_back(result);
      }
      values = std::move(reduced);
    };
    to.real() ? fold(to.reals) : fold(to.wholes);
    to.shape[axis] = 1;
  }
  if (attributes.whole("keepdims", 1) != 0) return to;
  for (std::size_t i = axes.size(); i-- > 0;) to.shape.erase(to.shape.begin() + static_cast<std::ptrdiff_t>(axes[i]));
  return to;
}

HostTensor reduce_max(const Attributes& attributes, const FoldInputs& inputs) {
  return reduce(attributes, inputs, [](auto a, auto b) { return std::max(a, b); });
}

HostTensor reduce_min(const Attributes& attributes, const FoldInputs& inputs) {
  return reduce(attributes, inputs, [](auto a, auto b) { return std::min(a, b); });
}

HostTensor reduce_sum(const Attributes& attributes, const FoldInputs& inputs) {
  return reduce(attributes, inputs, [](auto a, auto b) { return plus(a, b); });
}

HostTensor reduce_mean(const Attributes& attributes, const FoldInputs& inputs) {
  const HostTensor& from = input(inputs, 0);
  if (!from.real()) fail("the mean of whole numbers is not supported");
  HostTensor to = reduce_sum(attributes, inputs);
  const double count = static_cast<double>(from.size()) / static_cast<double>(std::max<std::size_t>(to.size(), 1));
  for (double& value : to.reals) value /= count;
  return to;
}

HostTensor clip(const Attributes& attributes, const FoldInputs& inputs) {
  HostTensor to = input(inputs, 0);
  for (const bool most : {false, true}) {
    const std::size_t i = most ? 2 : 1;
    const char* name = most ? "max" : "min";
    if (!has(inputs, i) && !attributes.has(name)) continue;
    if (has(inputs, i) && input(inputs, i).size() != 1) fail("its bounds must be numbers");
    const double bound = has(inputs, i) ? input(inputs, i).at(0) : attributes.real(name, 0);
    for (double& value : to.reals) value = most ? std::min(value, bound) : std::max(value, bound);
    for (std::int64_t& value : to.wholes) {
      const auto limit = static_cast<std::int64_t>(std::clamp(bound, -0x1p62, 0x1p62));
      value = most ? std::min(value, limit) : std::max(value, limit);
    }
  }
  return to;
}

// (x - zero point) scale: for the whole tensor, for each element in a dimension, or for blocks in it.
HostTensor dequantized(const Attributes& attributes, const FoldInputs& inputs) {
  const HostTensor &from = input(inputs, 0), &scale = input(inputs, 1);
  if (from.real() || !scale.real()) fail("its inputs do not fit");
  if (attributes.whole("block_size", 0) != 0) fail("blocks are not supported: quantize by channel");
  if (has(inputs, 2) && input(inputs, 2).size() != scale.size()) fail("its zero points do not fit its scales");
  std::size_t extent = 1, step = 1;
  if (scale.size() != 1) {
    const std::size_t axis = checked_axis(attributes.whole("axis", 1), from.shape.size());
    extent = from.shape[axis];
    for (std::size_t i = axis + 1; i < from.shape.size(); ++i) step *= from.shape[i];
  }
  if (scale.size() != extent) fail("its {} scales do not fit {}", scale.size(), to_string(from.shape));
  HostTensor to = real_numbers(from.shape, {});
  for (std::size_t i = 0; i < from.size(); ++i) {
    const std::size_t at = i / step % extent;
    const double zero = has(inputs, 2) ? input(inputs, 2).at(at) : 0;
    to.reals.push_back((static_cast<double>(from.wholes[i]) - zero) * scale.reals[at]);
  }
  return to;
}

}  // namespace

void add_scan_rules(FoldRules& rules) {
  rules["CumSum"] = cumulative_sum;
  rules["Trilu"] = triangle;
  rules["GatherElements"] = gather_elements;
  rules["ScatterElements"] = scatter_elements;
  rules["ReduceMax"] = reduce_max;
  rules["ReduceMin"] = reduce_min;
  rules["ReduceSum"] = reduce_sum;
  rules["ReduceMean"] = reduce_mean;
  rules["Clip"] = clip;
  rules["DequantizeLinear"] = dequantized;
}

}  // namespace annulus
