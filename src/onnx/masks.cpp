#include "src/onnx/masks.h"

#include <cmath>
#include <limits>

namespace annulus {
namespace {

// A mask with fully masked rows opened; `rows`: 0 for these rows, else 1.
struct OpenMask {
  HostTensor mask, rows;
  bool changed = false;
};

OpenMask open_mask(const Constant& mask) {
  const std::size_t size = mask.shape.back();
  OpenMask open{real_numbers(mask.shape, {mask.values.begin(), mask.values.end()}), real_numbers(mask.shape, {})};
  open.rows.shape.back() = 1;
  for (std::size_t begin = 0; begin < mask.values.size(); begin += size) {
    bool all = true;
    for (std::size_t i = begin; i < begin + size; ++i) all = all && std::isinf(mask.values[i]) && mask.values[i] < 0;
    open.rows.reals.push_back(all ? 0 : 1);
    open.changed = open.changed || all;
    for (std::size_t i = begin; all && i < begin + size; ++i) open.mask.reals[i] = 0;
  }
  return open;
}

}  // namespace

Value constant(NodeReader& n, HostTensor tensor) {
  return n.value(Item(std::make_shared<const HostTensor>(std::move(tensor))));
}

bool is_lowest(double score) {
  return score <= std::numeric_limits<float>::lowest();
}

bool is_truth(const GraphBuilder& builder, Value value, int depth) {
  using enum Arithmetic::Operator;
  if (depth == 0) return false;
  const auto input = [&](std::size_t i) { return is_truth(builder, builder.layer(value).inputs[i], depth - 1); };
  if (const auto* function = builder.computed_by<Activation>(value))
    return function->function == Activation::Function::linear && function->alpha == -1 && function->beta == 1 &&
           input(0);
  const auto* made = builder.computed_by<Arithmetic>(value);
  if (made == nullptr) return false;
  if (made->op == greater || made->op == at_least || made->op == equal) return true;
  return (made->op == product || made->op == maximum) && input(0) && input(1);
}

Value without_masked_rows(NodeReader& n, Value softmax) {
  const GraphBuilder& builder = n.builder();
  const Value scores = builder.layer(softmax).inputs[0];
  const auto* sum = builder.computed_by<Arithmetic>(scores);
  if (sum == nullptr || sum->op != Arithmetic::Operator::sum) return softmax;
  for (const std::size_t i : {0, 1}) {
    const Value masked = builder.layer(scores).inputs[1 - i];
    const auto* mask = builder.computed_by<Constant>(builder.layer(scores).inputs[i]);
    if (mask == nullptr || mask->shape.empty() || mask->shape.back() != n.shape(scores).back()) continue;
    OpenMask open = open_mask(*mask);
    if (!open.changed) return softmax;
    const Value opened = n.combine(Arithmetic::Operator::sum, masked, constant(n, std::move(open.mask)));
    return n.combine(Arithmetic::Operator::product, n.add(Softmax{}, {opened}), constant(n, std::move(open.rows)));
  }
  return softmax;
}

}  // namespace annulus
