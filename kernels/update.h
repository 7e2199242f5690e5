#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string_view>
#include <variant>
#include <vector>

#include "kernels/base/split.h"
#include "kernels/base/tensor.h"
#include "kernels/operation.h"

namespace annulus {

// Update rules: how all-reduced gradients change parameters. In all rules w is a weight and g its gradient. Parameters
// with the role `offset` have no weight decay. A parameter may have a separate rate and weight decay.

// Stochastic gradient descent with momentum: g += weight_decay w;  v = momentum v + g;  w -= rate v
// (or, with Nesterov's momentum, w -= rate (g + momentum v)). The velocity does not include the rate, so it needs no
// correction when the rate changes (Goyal et al., "Accurate, large minibatch SGD", 2017, remark 2).
struct Sgd {
  float momentum = 0;
  float weight_decay = 0;
  bool nesterov = false;
};

// Layer-wise adaptive rates (You, Gitman, Ginsburg, "Large batch training of convolutional networks", 2017): with norms
// over a whole parameter, local = trust |w| / (|g| + weight_decay |w|), and then v = momentum v + rate local (g +
// weight_decay w);  w -= v.  If a norm is 0, and for offsets, local is 1. As in that paper, the velocity includes the
// rate: after the rate has changed suddenly, the old rate has an effect for some steps.
struct Lars {
  float momentum = 0;
  float weight_decay = 0;
  float trust = 0.001f;
};

// Adam with decoupled weight decay (Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR 2019), in step
// t, counted from 1: m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2; w -= rate (m / (1 - beta1^t) /
// (sqrt(v / (1 - beta2^t)) + epsilon) + weight_decay w).
struct AdamW {
  float beta1 = 0.9f;
  float beta2 = 0.999f;
  float epsilon = 1e-8f;
  float weight_decay = 0;
};

// Muon (Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024,
// https://kellerjordan.github.io/posts/muon/): v = momentum v + (1 - momentum) g;  u = momentum v + (1 - momentum) g;
// w -= rate (scale orthogonal(u) + weight_decay w), for parameters with UpdateFactors::orthogonalizes. A tensor {rows,
// ...} counts as a matrix of `rows` rows; a convolution has a row per filter. `others` updates all other parameters,
// with Muon's weight decay.
struct Muon {
  // How singular values approach 1.
  enum class Iteration {
    newton_schulz,  // Jordan's values, made for 5 steps: to 0.68 .. 1.14, from 0.01 of the norm on
    polar_express,  // Amsel et al., "The Polar Express", 2025, arXiv 2505.16932: 6 steps to 0.99 .. 1.01, from 0.001 on
  };

  float momentum = 0.95f;
  float weight_decay = 0;
  Iteration iteration = Iteration::polar_express;
  std::size_t steps = 6;
  // The update's root mean square is about 0.2, as AdamW's (Liu et al., "Muon is scalable for LLM training", 2025,
  // arXiv 2502.16982): scale = 0.2 sqrt(max(rows, columns)). Otherwise, as in Jordan's, sqrt(max(1, rows / columns)).
  bool matches_adamw = true;
  std::variant<AdamW, Sgd> others{};
};

using UpdateRule = std::variant<Sgd, Lars, AdamW, Muon>;

std::string_view optimizer_name(const UpdateRule& rule);  // sgd, lars, adamw or muon
std::size_t states(const UpdateRule& rule);               // number of state arenas: 1 (momentum) or 2 (both moments)
bool needs_whole_parameters(const UpdateRule& rule);      // whether it cannot update arbitrary slices
float momentum(const UpdateRule& rule);                   // SGD's, LARS's or Muon's momentum, or AdamW's beta1

class MatrixExchange;

// All-reduces (sums) a float32 array in the device's memory over all ranks, in place and in the lane's order.
using SumOverRanks = std::function<void(DeviceView)>;

// How an average follows the weights, statistics included. (Polyak and Juditsky, "Acceleration of stochastic
// approximation by averaging", 1992; the growing decay is that of TensorFlow's ExponentialMovingAverage.)
//
// With `every`, the average moves only after each `every` steps, and then the weights become the average (Zhang,
// Lucas, Hinton, Ba, "Lookahead optimizer", 2019). The decay rises with the cube of the run's progress (Jordan, "94% on
// CIFAR-10 in 3.29 seconds on a single GPU", 2024, arXiv 2404.00498, section 3.4).
struct Averaging {
  // `steps`: the whole run's, for Lookahead.
  constexpr Averaging(double decay_ = 0, std::uint64_t every_ = 0, std::uint64_t steps_ = 0)
      : decay(decay_), every(every_), steps(steps_) {}

  constexpr bool on() const { return decay > 0; }
  constexpr bool looks_ahead() const { return every > 0; }
  // Whether the average moves after this step, counted from 1.
  constexpr bool moves_in(std::uint64_t step) const { return on() && (every == 0 || step % every == 0); }
  // The share by which the average moves towards the weights then.
  float share(std::uint64_t step) const;

  double decay;
  std::uint64_t every, steps;
};

// The arenas that an update reads and writes. They have the same layout, and all but `copies` are float32.
struct UpdateArenas {
  DeviceView weights, gradients;
  DeviceView copies;  // the weights in the device's value type; empty if that type is float32
  std::array<DeviceView, 2> states;
  DeviceView average{};  // the weights' moving average, statistics included; empty: none
  Averaging averaging{};

  // If not empty, the slices that this rank updates, in floats, ascending and disjoint; together the ranks update all.
  // States and the average contain these slices only, packed. On GPUs slice sizes are multiples of 16 bytes.
  std::vector<Range> kept{};
  SumOverRanks sum_over_ranks{};  // needed with `kept`
  // How ranks share the work on whole parameters; null: each rank does all of it. Needed with `kept` by Muon.
  MatrixExchange* exchange = nullptr;
};

// Returns the parts of a segment that lie in this rank's slices.
std::vector<Range> kept_parts(const UpdateArenas& arenas, const Range& segment);

// Maps kept slices to positions in the states and in the average.
class KeptPlaces {
 public:
  explicit KeptPlaces(const std::vector<Range>& kept);

  // `position`: in the other arenas, within a kept slice. If no slices are given, all is kept.
  std::size_t of(std::size_t position) const;

 private:
  std::vector<Range> kept_;
  std::vector<std::size_t> places_;
};

// How a parameter's update differs from the default.
struct UpdateFactors {
  float rate = 1;                                                       // factor for the learning rate
  std::optional<float> weight_decay{};                                  // instead of the rule's, also for offsets
  bool orthogonalizes = false;                                          // with Muon: this parameter is a matrix
  std::uint64_t last_step = std::numeric_limits<std::uint64_t>::max();  // later steps do not change the parameter
};

// A parameter's place in the arenas, in floats.
struct UpdateSegment {
  Range range;
  Role role;
  UpdateFactors factors{};
  float statistic_momentum = kStatisticMomentum;  // for a statistic: w += statistic_momentum (g - w)
  TensorSpec tensor{};                            // needed if factors.orthogonalizes
};

// A step X <- a X + b (X X^T) X + c (X X^T)^2 X of an iteration that makes a matrix orthogonal.
struct OrthogonalizingStep {
  float a, b, c;
};
std::vector<OrthogonalizingStep> orthogonalizing_steps(const Muon& rule);

// The matrix that a tensor counts as.
struct MatrixSize {
  std::size_t rows = 0, columns = 0;
};
MatrixSize matrix_size(const Shape& tensor);
float orthogonal_scale(const Muon& rule, const MatrixSize& size);

float weight_decay(const UpdateRule& rule, const UpdateSegment& segment);

// L2 norms of gradients over several steps, each over all trained parameters.
struct GradientNorms {
  double sum = 0, largest = 0, last = 0;
  std::uint64_t steps = 0;

  double mean() const { return steps > 0 ? sum / static_cast<double>(steps) : 0; }
  GradientNorms& operator+=(const GradientNorms& later);
};

// An update rule planned on a device for given arenas. Norms are over all gradients, also if each rank keeps slices;
// then taking them is collective. Their bits do not depend on the slices.
class Update {
 public:
  virtual ~Update() = default;

  // Updates the weights, their copies, states, statistics and average in this slice of the arenas, in floats. `step`
  // counts from 1. REQUIRES: the slice is within a kept slice; if needs_whole_parameters(), measure_parameters() was
  // called for it; on a GPU its size is a multiple of 16 bytes.
  virtual void run(const Range& slice, float rate, std::uint64_t step) = 0;

  // Prepares the next run() of the whole parameters in this slice: takes weight and gradient norms of each (LARS),
  // or updates momenta and orthogonalizes them (Muon). REQUIRES: needs_whole_parameters(), the slice contains whole
  // parameters, and their gradients are final.
  virtual void measure_parameters(const Range& slice) = 0;

  // If the norm of a step's gradients, over all trained parameters, is above `limit`, scales the gradients down to it
  // (Pascanu, Mikolov, Bengio, "On the difficulty of training recurrent neural networks", ICML 2013, algorithm 1). Call
  // before the step's first run(), when all gradients are final. The result is bit-identical for any number of threads;
  // on a GPU, the host does not wait for it, except in include()'s function.
  virtual void clip(float limit) = 0;
  // From now on, norms include other arenas' gradients: all(squares) returns the sum of all squares, given this arena's
  // sum.
  virtual void include(const std::function<double(double squares)>& all) = 0;
  // Measures the current gradients' norm, without changing them.
  virtual void measure_norm() = 0;
  virtual GradientNorms take_norms() = 0;  // found by either since the last call, before clipping

  // Adds the squares of the trained parameters' current gradients in this slice to this rank's sum. On a GPU the slice
  // size is a multiple of 16 bytes.
  virtual void add_squares(const Range& slice) = 0;
  virtual double take_squares() = 0;  // the sum since the last call
};

}  // namespace annulus
