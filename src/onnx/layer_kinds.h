#pragma once

#include <algorithm>
#include <cmath>

#include "src/onnx/graph_builder.h"

// Recognizes the layers in patterns.
namespace annulus {

inline bool near(double a, double b) {
  return std::fabs(a - b) <= 1e-4 * std::max(1.0, std::fabs(b));
}

// A value as alpha x + beta.
struct Line {
  Value x;
  double alpha = 1, beta = 0;
};

inline Line line(const GraphBuilder& builder, Value value) {
  const auto* activation = builder.computed_by<Activation>(value);
  if (activation == nullptr || activation->function != Activation::Function::linear) return {value};
  return {builder.layer(value).inputs[0], activation->alpha, activation->beta};
}

inline bool is_function(const GraphBuilder& builder, Value value, Activation::Function function) {
  const auto* activation = builder.computed_by<Activation>(value);
  return activation != nullptr && activation->function == function;
}

inline bool is_arithmetic(const GraphBuilder& builder, Value value, Arithmetic::Operator op) {
  const auto* arithmetic = builder.computed_by<Arithmetic>(value);
  return arithmetic != nullptr && arithmetic->op == op;
}

}  // namespace annulus
