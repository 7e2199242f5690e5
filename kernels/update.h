#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <variant>
#include <vector>

#include "kernels/base/split.h"
#include "kernels/base/tensor.h"
#include "kernels/operation.h"

namespace annulus {

// How summed gradients change parameters. In all of them w is a weight, g its gradient, and parameters whose role is
// `offset` are spared the weight decay.

// Stochastic gradient descent with momentum: g += weight_decay w;  v = momentum v + g;  w -= rate v
// (or, with Nesterov's momentum, w -= rate (g + momentum v)). The velocity knows nothing of the rate, so a rate that
// changes needs no correction of it (Goyal et al., "Accurate, large minibatch SGD", 2017, remark 2).
struct Sgd {
  float momentum = 0;
  float weight_decay = 0;
  bool nesterov = false;
};

// Layer-wise adaptive rates (You, Gitman, Ginsburg, "Large batch training of convolutional networks", 2017): with the
// norms over a whole parameter, local = trust |w| / (|g| + weight_decay |w|), and then
// v = momentum v + rate local (g + weight_decay w);  w -= v.  Where a norm is 0, and for offsets, local is 1. Here, as
// in that paper, the rate is part of the velocity: after a sudden change of it old rates go on for some steps.
struct Lars {
  float momentum = 0;
  float weight_decay = 0;
  float trust = 0.001f;
};

// Adam with decoupled weight decay (Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR 2019), in step
// t, the first of which is 1: m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2;
// w -= rate (m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon) + weight_decay w).
struct AdamW {
  float beta1 = 0.9f;
  float beta2 = 0.999f;
  float epsilon = 1e-8f;
  float weight_decay = 0;
};

using UpdateRule = std::variant<Sgd, Lars, AdamW>;

std::string_view optimizer_name(const UpdateRule& rule);  // sgd, lars or adamw
std::size_t states(const UpdateRule& rule);               // arenas of its own: 1, momentum; or 2, both moments
bool needs_whole_parameters(const UpdateRule& rule);      // and not any slice of them

// How fast the statistics that inference uses follow those of the batches: w += kStatisticMomentum (g - w).
constexpr float kStatisticMomentum = 0.1f;

// The arenas that an update works on, float32 all but one, of one layout.
struct UpdateArenas {
  DeviceView weights, gradients;
  DeviceView copies;  // of the weights, in the device's value type; empty where that is float32
  std::array<DeviceView, 2> states;
};

// Of the arenas, in floats: a parameter.
struct UpdateSegment {
  Range range;
  Role role;
};

// Of a step's gradients, all parameters that a rule trains together.
struct GradientNorms {
  double sum = 0, largest = 0, last = 0;
  std::uint64_t steps = 0;

  double mean() const { return steps > 0 ? sum / static_cast<double>(steps) : 0; }
  GradientNorms& operator+=(const GradientNorms& later);
};

// A rule planned on a device for certain arenas.
class Update {
 public:
  virtual ~Update() = default;

  // Updates what lies in this slice of the arenas, in floats: weights, their copies, states and statistics. A rule that
  // needs whole parameters wants slices of such, a GPU those of whole 16 bytes. `step` counts from 1.
  virtual void run(const Range& slice, float rate, std::uint64_t step) = 0;

  // Before a step's first run(), with all of its gradients: where their norm, over all parameters that are trained, is
  // above `limit`, they are scaled down to it (Pascanu, Mikolov, Bengio, "On the difficulty of training recurrent
  // neural networks", ICML 2013, algorithm 1). The same bits on any number of threads; on a GPU nobody waits for it.
  virtual void clip(float limit) = 0;
  // The same without changing them, at any time at which gradients are what is to be measured.
  virtual void measure_norm() = 0;
  virtual GradientNorms take_norms() = 0;  // that either found since the last call; before they were clipped
};

}  // namespace annulus
