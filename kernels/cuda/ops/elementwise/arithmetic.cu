#include <algorithm>

#include "kernels/cuda/ops/loops/sums.h"
#include "kernels/cuda/ops/plan/operations.h"

namespace annulus::cuda {
namespace {

// Each operator has a value, and the factors by which the output's gradient enters the gradients of a and b.
struct Sum {
  __device__ static float value(float a, float b) { return a + b; }
  __device__ static float slope_a(float, float) { return 1; }
  __device__ static float slope_b(float, float) { return 1; }
};

struct Difference {
  __device__ static float value(float a, float b) { return a - b; }
  __device__ static float slope_a(float, float) { return 1; }
  __device__ static float slope_b(float, float) { return -1; }
};

struct Product {
  __device__ static float value(float a, float b) { return a * b; }
  __device__ static float slope_a(float, float b) { return b; }
  __device__ static float slope_b(float a, float) { return a; }
};

struct Quotient {
  __device__ static float value(float a, float b) { return a / b; }
  __device__ static float slope_a(float, float b) { return 1 / b; }
  __device__ static float slope_b(float a, float b) { return -a / (b * b); }
};

// Equal values get half the gradient each.
struct Maximum {
  __device__ static float value(float a, float b) { return a < b || b != b ? b : a; }
  __device__ static float slope_a(float a, float b) { return a > b ? 1.0f : a < b ? 0.0f : 0.5f; }
  __device__ static float slope_b(float a, float b) { return slope_a(b, a); }
};

struct Minimum {
  __device__ static float value(float a, float b) { return b < a || b != b ? b : a; }
  __device__ static float slope_a(float a, float b) { return a < b ? 1.0f : a > b ? 0.0f : 0.5f; }
  __device__ static float slope_b(float a, float b) { return slope_a(b, a); }
};

struct Comparison {
  __device__ static float slope_a(float, float) { return 0; }
  __device__ static float slope_b(float, float) { return 0; }
};

struct Greater : Comparison {
  __device__ static float value(float a, float b) { return a > b ? 1.0f : 0.0f; }
};

struct AtLeast : Comparison {
  __device__ static float value(float a, float b) { return a >= b ? 1.0f : 0.0f; }
};

struct Equal : Comparison {
  __device__ static float value(float a, float b) { return a == b ? 1.0f : 0.0f; }
};

struct Choice {
  __device__ static float value(float a, float b) { return b != 0 ? a : 0.0f; }
  __device__ static float slope_a(float, float b) { return b != 0 ? 1.0f : 0.0f; }
  __device__ static float slope_b(float, float) { return 0; }
};

// Calls use(operator). Every thread takes the same branch, once for each vector.
template <class Use>
__device__ void with_operator(Arithmetic::Operator op, const Use& use) {
  using enum Arithmetic::Operator;
  switch (op) {
    case sum:
      return use(Sum{});
    case difference:
      return use(Difference{});
    case product:
      return use(Product{});
    case quotient:
      return use(Quotient{});
    case maximum:
      return use(Maximum{});
    case minimum:
      return use(Minimum{});
    case greater:
      return use(Greater{});
    case at_least:
      return use(AtLeast{});
    case equal:
      return use(Equal{});
    case choice:
      return use(Choice{});
  }
}

// Whether the gradients do not depend on the operands.
__host__ __device__ constexpr bool linear(Arithmetic::Operator op) {
  using enum Arithmetic::Operator;
  return op == sum || op == difference || op == greater || op == at_least || op == equal;
}

// Computes each element's value; padding stays zero.
template <class T>
struct Value {
  Arithmetic::Operator op;
  const T *a, *b;

  __device__ Vector<T> operator()(const Operands<2>& operands) const {
    const Vector<T> p = load(a, operands.of[0]), q = load(b, operands.of[1]);
    Vector<T> result{};
    with_operator(op, [&](auto o) {
      for (unsigned k = 0; k < kLanes<T>; ++k) result.at[k] = k < operands.of[0].used ? o.value(p.at[k], q.at[k]) : 0;
    });
    return result;
  }
};

// A term in the gradient of a or b.
template <class T, bool of_b>
struct Gradient {
  Arithmetic::Operator op;
  const T *a, *b, *output_gradient;

  __device__ Vector<T> operator()(const Operands<3>& operands) const {
    Vector<T> p{}, q{};
    if (!linear(op)) {
      p = load(a, operands.of[0]);
      q = load(b, operands.of[1]);
    }
    Vector<T> result = load(output_gradient, operands.of[2]);
    with_operator(op, [&](auto o) {
      for (unsigned k = 0; k < kLanes<T>; ++k) {
        if (std::is_same_v<decltype(o), Quotient> && result.at[k] == 0) continue;  // also if it divided by 0
        if (k < operands.of[2].used) result.at[k] *= of_b ? o.slope_b(p.at[k], q.at[k]) : o.slope_a(p.at[k], q.at[k]);
      }
    });
    return result;
  }
};

// The output takes the layout from an operand with the output's shape, if any.
TensorSpec output_spec(const Arithmetic& operation, const Specs& inputs, DataType type) {
  const Shape shape = operation.output_shape({inputs[0].shape, inputs[1].shape});
  for (const TensorSpec& input : inputs)
    if (input.shape == shape) return value_spec(shape, type, channels_last(input).axis());
  return value_spec(shape, type);
}

template <class T>
class ArithmeticOp : public Op {
 public:
  ArithmeticOp(const Arithmetic& operation, const Specs& inputs, Context& context)
      : context_(context), op_(operation.op) {
    info_.output = output_spec(operation, inputs, context.type());
    const Shape& shape = info_.output.shape;
    const std::array<Strides, 2> operands{repeated(inputs[0], shape), repeated(inputs[1], shape)};
    value_ = loop_over<2>(channels_last(info_.output), operands, kLanes<T>);
    const std::array<Strides, 3> all{operands[0], operands[1], strides_of(info_.output)};
    info_.backward_reads_output = false;
    for (const TensorSpec& input : inputs) {
      gradients_.emplace_back(shape, input, all, context);
      // Each vector is read before the result replaces it. (Not so for gradients: the first of two would
      // overwrite the values that the second is computed from.)
      const bool same = input.shape == shape && input.layout->name() == info_.output.layout->name();
      info_.inputs.push_back({.backward_reads = !linear(op_), .output_may_overwrite = same, .adds_to_gradient = true});
    }
  }

  void bind(const Bindings& bindings) override {
    bindings_ = bindings;
    if (bindings.output_gradient)
      workspace_ = context_.workspace(std::max(gradients_[0].workspace_bytes(), gradients_[1].workspace_bytes()));
  }

  void forward() override {
    over_vectors(put_terms<T, 2, Value<T>>, value_.vectors(), context_, value_,
                 Value<T>{op_, data<T>(bindings_.inputs[0]), data<T>(bindings_.inputs[1])},
                 InputGradient<T>(bindings_.output));
  }

  void backward(float) override {
    differentiate<false>();
    differentiate<true>();
  }

 private:
  template <bool of_b>
  void differentiate() const {
    if (const InputGradient<T> to(bindings_, of_b); to.wanted())
      gradients_[of_b].run(Gradient<T, of_b>{op_, data<T>(bindings_.inputs[0]), data<T>(bindings_.inputs[1]),
                                             data<T>(bindings_.output_gradient)},
                           to, workspace_);
  }

  Context& context_;
  Arithmetic::Operator op_;
  Loop<2> value_;
  std::vector<SumOver<T, 3>> gradients_;
  Bindings bindings_;
  void* workspace_ = nullptr;
};

}  // namespace

std::unique_ptr<Op> plan(const Arithmetic& operation, const Specs& inputs, Mode, Context& context) {
  return make_for<Op, ArithmeticOp>(context.type(), operation, inputs, context);
}

}  // namespace annulus::cuda
