#include <algorithm>
#include <optional>

#include "kernels/cpu/loops/elementwise.h"
#include "kernels/cpu/loops/strided_loops.h"
#include "kernels/cpu/plan/plain_op.h"

namespace annulus::cpu {
namespace {

// An operation that moves elements: each output element comes from a single input element.
class MoveOp : public PlainOp {
 public:
  // `fill`: the value for output elements that are not moved, if there are any.
  struct Move {
    Walk walk;                     // from the input to the output
    std::size_t from = 0, to = 0;  // the first elements
    bool from_all = true;          // every input element is moved
    std::optional<float> fill = {};
  };

  MoveOp(const Operation& operation, const TensorSpec& input, const Move& move)
      : PlainOp({input}, output_shape(operation, {input.shape})),
        move_(move),
        back_{move.walk.shape, move.walk.to, move.walk.from} {
    info_.inputs = {{.backward_reads = false, .adds_to_gradient = true}};
  }

 private:
  void compute() override {
    if (move_.fill) std::fill_n(output(), elements(shape()), *move_.fill);
    move_elements(move_.walk, input(0) + move_.from, output() + move_.to);
  }

  void differentiate() override {
    float* const gradient = input_gradient(0);
    const bool add = accumulates(0);
    if (!add && !move_.from_all) std::fill_n(gradient, elements(shape(0)), 0.0f);
    move_elements(back_, output_gradient() + move_.to, gradient + move_.from, add);
  }

  Move move_;
  Walk back_;
};

// Copies only if input and output cannot share memory.
class ReshapeOp : public PlainOp {
 public:
  ReshapeOp(const Reshape& operation, const TensorSpec& input)
      : PlainOp({input}, output_shape(operation, {input.shape})) {
    const bool in_place = desc(input) == plain_layout(input.shape);
    info_.inputs = {{.backward_reads = false, .output_may_overwrite = in_place, .gradient_may_overwrite = in_place}};
  }

 private:
  void compute() override { copy({input(0), elements(shape())}, {output(), elements(shape())}); }
  void differentiate() override {
    copy({output_gradient(), elements(shape())}, {input_gradient(0), elements(shape())});
  }
};

// Moves the elements once, from whatever layout the input has; or not at all, if the input's memory is already the
// output in row-major order, or images in channels-last order.
class TransposeOp : public Op {
 public:
  TransposeOp(const Transpose& operation, const TensorSpec& input) {
    const Shape shape = output_shape(operation, {input.shape});
    // oneDNN's order says where each input dimension goes.
    std::vector<int> to(shape.size());
    for (std::size_t i = 0; i < shape.size(); ++i) to[operation.order[i]] = static_cast<int>(i);
    in_ = desc(input).permute_axes(to);
    const bool images = shape.size() == 4 && has_layout(spec(shape, in_), dnnl::memory::format_tag::nhwc);
    out_ = images ? in_ : plain_layout(shape);
    const bool in_place = in_ == out_;
    info_.output = spec(shape, out_);
    info_.inputs = {{.backward_reads = false, .output_may_overwrite = in_place, .gradient_may_overwrite = in_place}};
    info_.backward_reads_output = false;
    info_.implementations = Adapted::implementations(in_, out_);
  }

  void bind(const Bindings& bindings) override {
    forward_ = moving(in_, bindings.inputs[0], out_, bindings.output);
    if (bindings.output_gradient && bindings.input_gradients[0])
      backward_ = moving(out_, bindings.output_gradient, in_, bindings.input_gradients[0]);
  }

  void forward() override { forward_.run(); }
  void backward(float) override { backward_.run(); }

 private:
  static Primitive moving(const dnnl::memory::desc& from, DeviceView source, const dnnl::memory::desc& to,
                          DeviceView target) {
    if (from == to && source.address == target.address) return {};
    const dnnl::memory in = memory_at(from, source), out = memory_at(to, target);
    return {dnnl::reorder(in, out), {{DNNL_ARG_FROM, in}, {DNNL_ARG_TO, out}}};
  }

  dnnl::memory::desc in_, out_;  // the input with the output's dimensions, and the output
  Primitive forward_, backward_;
};

class GatherOp : public PlainOp {
 public:
  GatherOp(const Gather& operation, const TensorSpec& input)
      : PlainOp({input}, output_shape(operation, {input.shape})),
        indices_(operation.indices),
        outer_(elements({input.shape.begin(), input.shape.begin() + static_cast<std::ptrdiff_t>(operation.axis)})),
        extent_(input.shape[operation.axis]),
        inner_(elements({input.shape.begin() + static_cast<std::ptrdiff_t>(operation.axis) + 1, input.shape.end()})) {
    info_.inputs = {{.backward_reads = false, .adds_to_gradient = true}};
  }

 private:
  void compute() override {
    const std::size_t count = indices_.size();
#pragma omp parallel for collapse(2) schedule(static)
    for (std::size_t o = 0; o < outer_; ++o)
      for (std::size_t i = 0; i < count; ++i)
        std::copy_n(input(0) + (o * extent_ + indices_[i]) * inner_, inner_, output() + (o * count + i) * inner_);
  }

  // An input element may be read several times.
  void differentiate() override {
    float* const gradient = input_gradient(0);
    if (!accumulates(0)) std::fill_n(gradient, elements(shape(0)), 0.0f);
    const std::size_t count = indices_.size();
#pragma omp parallel for schedule(static)
    for (std::size_t o = 0; o < outer_; ++o)
      for (std::size_t i = 0; i < count; ++i) {
        const float* from = output_gradient() + (o * count + i) * inner_;
        float* to = gradient + (o * extent_ + indices_[i]) * inner_;
        for (std::size_t k = 0; k < inner_; ++k) to[k] += from[k];
      }
  }

  std::vector<std::size_t> indices_;
  std::size_t outer_, extent_, inner_;
};

class ExpandOp : public PlainOp {
 public:
  ExpandOp(const Expand& operation, const Specs& inputs)
      : PlainOp({inputs[0]}, output_shape(operation, {inputs[0].shape, inputs[1].shape})) {
    info_.inputs = {{.backward_reads = false, .adds_to_gradient = true}, {.backward_reads = false}};
    walk_ = {shape(), row_major_strides(inputs[0].shape), row_major_strides(shape())};
    for (std::size_t i = 0; i < shape().size(); ++i)
      if (inputs[0].shape[i] == 1) walk_.from[i] = 0;
  }

 private:
  void compute() override { move_elements(walk_, input(0), output()); }

  void differentiate() override {
    sum_elements({walk_.shape, walk_.to, walk_.from}, output_gradient(), input_gradient(0), accumulates(0));
  }

  Walk walk_;
};

class LearnedOp : public PlainOp {
 public:
  explicit LearnedOp(const Learned& operation) : PlainOp({}, operation.output_shape({})) {
    declare(operation.parameters({}));
  }

 private:
  void compute() override { copy({parameter(0), elements(shape())}, {output(), elements(shape())}); }
  void differentiate() override {
    copy({output_gradient(), elements(shape())}, {parameter_gradient(0), elements(shape())});
  }
};

class ConstantOp : public PlainOp {
 public:
  explicit ConstantOp(const Constant& operation) : PlainOp({}, operation.shape), values_(operation.values) {}

 private:
  void compute() override { copy(values_, {output(), values_.size()}); }
  void differentiate() override {}

  std::vector<float> values_;
};

}  // namespace

std::unique_ptr<Op> plan(const Reshape& operation, const Specs& inputs, Mode, const Specs&) {
  return std::make_unique<ReshapeOp>(operation, inputs[0]);
}

std::unique_ptr<Op> plan(const Transpose& operation, const Specs& inputs, Mode, const Specs&) {
  return std::make_unique<TransposeOp>(operation, inputs[0]);
}

std::unique_ptr<Op> plan(const Slice& operation, const Specs& inputs, Mode, const Specs&) {
  const Shape shape = output_shape(operation, {inputs[0].shape});
  const Strides from = row_major_strides(inputs[0].shape);
  return std::make_unique<MoveOp>(operation, inputs[0],
                                  MoveOp::Move{.walk = {shape, from, row_major_strides(shape)},
                                               .from = operation.begin * from[operation.axis],
                                               .from_all = shape == inputs[0].shape});
}

std::unique_ptr<Op> plan(const Pad& operation, const Specs& inputs, Mode, const Specs&) {
  const Shape& in = inputs[0].shape;
  const Strides to = row_major_strides(output_shape(operation, {in}));
  std::size_t first = 0;
  for (std::size_t i = 0; i < in.size(); ++i) first += operation.before[i] * to[i];
  return std::make_unique<MoveOp>(
      operation, inputs[0],
      MoveOp::Move{.walk = {in, row_major_strides(in), to}, .to = first, .fill = operation.value});
}

std::unique_ptr<Op> plan(const Gather& operation, const Specs& inputs, Mode, const Specs&) {
  return std::make_unique<GatherOp>(operation, inputs[0]);
}

std::unique_ptr<Op> plan(const Expand& operation, const Specs& inputs, Mode, const Specs&) {
  return std::make_unique<ExpandOp>(operation, inputs);
}

std::unique_ptr<Op> plan(const Learned& operation, const Specs&, Mode, const Specs&) {
  return std::make_unique<LearnedOp>(operation);
}

std::unique_ptr<Op> plan(const Constant& operation, const Specs&, Mode, const Specs&) {
  return std::make_unique<ConstantOp>(operation);
}

}  // namespace annulus::cpu
