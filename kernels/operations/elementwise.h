#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "kernels/operations/parameter.h"

namespace annulus {

struct Relu {
  static constexpr auto kName = "relu";

  Shape output_shape(const Shapes& inputs) const { return inputs[0]; }
};

// Applies a function to each element.
struct Activation {
  enum class Function {
    linear,        // alpha x + beta
    clip,          // min(max(x, alpha), beta); ReLU6 is clip 0, 6
    leaky_relu,    // x, or alpha x if x < 0
    elu,           // x, or alpha (exp(x) - 1) if x < 0
    sigmoid,       // 1 / (1 + exp(-x))
    tanh,          //
    silu,          // x sigmoid(x)
    gelu,          // x Phi(x), with the normal distribution's Phi
    gelu_tanh,     // x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2
    mish,          // x tanh(softplus(x))
    softplus,      // log(1 + exp(x))
    hard_sigmoid,  // min(max(alpha x + beta, 0), 1)
    hard_swish,    // x min(max(x / 6 + 1/2, 0), 1)
    absolute,      // |x|
    exponential,   // exp(x)
    logarithm,     // log(x)
    square_root,   //
    square,        //
    reciprocal,    // 1 / x
    sign,          // 1, 0 or -1
  };
  static constexpr auto kName = "activation";

  Function function;
  float alpha = 0;
  float beta = 0;

  Shape output_shape(const Shapes& inputs) const { return inputs[0]; }
};

std::string_view name(Activation::Function function);  // "hard swish"

// x, or slope x if x < 0, with a slope per channel {channels}, or a single slope {1} (He et al., "Delving deep into
// rectifiers", ICCV 2015).
struct PRelu {
  static constexpr auto kName = "prelu";

  bool per_channel = true;

  Shape output_shape(const Shapes& inputs) const { return inputs[0]; }
  std::vector<ParameterDeclaration> parameters(const Shapes& inputs) const;
};

// Adds two inputs with the same shape.
struct Add {
  static constexpr auto kName = "add";

  Shape output_shape(const Shapes& inputs) const;
};

// Two inputs combined element by element. Shapes are aligned at their last dimension; a dimension that is missing or 1
// is repeated, as in NumPy. Comparisons are 1 if they hold, else 0; their gradients are 0.
struct Arithmetic {
  enum class Operator {
    sum,
    difference,
    product,
    quotient,
    maximum,
    minimum,
    greater,   // a > b
    at_least,  // a >= b
    equal,     // a = b
    choice     // a, or 0 if b is 0, also if a is not finite; b's gradient is 0
  };
  static constexpr auto kName = "arithmetic";

  Operator op;

  Shape output_shape(const Shapes& inputs) const;
};

std::string_view name(Arithmetic::Operator op);  // "product"

// The largest element in the last dimension, which is kept with size 1. Equal ones have equal parts of the gradient.
struct Maximum {
  static constexpr auto kName = "maximum of a dimension";

  Shape output_shape(const Shapes& inputs) const;
};

// exp(x) / sum(exp(x)) over the last dimension.
struct Softmax {
  static constexpr auto kName = "softmax";

  Shape output_shape(const Shapes& inputs) const { return inputs[0]; }
};

// Srivastava et al., "Dropout", JMLR 2014: in training, zero with probability `rate`, else 1 / (1 - rate) times the
// input; in inference, the input. The second input is {batch} (int32), a random key for each sample in this epoch. The
// mask (dropout_mask.h) depends on this key, the element's index in the sample and `number` only, so neither on the
// rank nor on the batch. Each dropout in a network needs a different number.
//
// With whole_samples, a sample's elements are all kept or all dropped: stochastic depth (Huang et al., ECCV 2016), if
// the input is a residual branch.
struct Dropout {
  static constexpr auto kName = "dropout";

  float rate;
  std::uint32_t number = 0;
  bool whole_samples = false;

  Shape output_shape(const Shapes& inputs) const;
};

}  // namespace annulus
