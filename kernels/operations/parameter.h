#pragma once

#include <string>
#include <vector>

#include "kernels/base/tensor.h"

namespace annulus {

// How a step changes a parameter. Every parameter that is not frozen has a slot in the gradient arena, which is
// all-reduced with each rank's contribution weighted by 1 / global batch. So every slot ends up with a mean over the
// global batch, bit-identical on every rank.
enum class Role {
  weight,     // updated by the optimizer, with weight decay
  offset,     // updated by the optimizer, without weight decay: biases, batch norm's scale and shift
  statistic,  // a running average over the slot's values: batch norm's mean and variance
  metric,     // only measured: the step's loss and accuracy
  frozen,     // not changed, whatever it was declared as
};

inline bool trained(Role role) {
  return role == Role::weight || role == Role::offset;
}

// A new batch's weight in a running statistic (momentum as PyTorch defines it; ONNX has 1 - momentum).
constexpr float kStatisticMomentum = 0.1f;

struct ParameterDeclaration {
  std::string name;
  Shape shape;
  Role role;
  float initial = 0;  // the initial value, unless stddev is positive
  float stddev = 0;   // if positive, initial values are normally distributed with mean 0 and this std
  float statistic_momentum = kStatisticMomentum;
  // The first outputs' weights {outputs, inputs, height, width} begin as 1 in the middle of their input and else 0, so
  // these outputs copy the inputs (as PyTorch's dirac_).
  bool begins_as_copy = false;
};

}  // namespace annulus
