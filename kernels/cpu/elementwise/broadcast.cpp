#include <algorithm>
#include <optional>

#include "kernels/base/error.h"
#include "kernels/cpu/loops/for_each_element.h"
#include "kernels/cpu/loops/strided_loops.h"
#include "kernels/cpu/plan/image_vectors.h"
#include "kernels/cpu/plan/plain_op.h"

namespace annulus::cpu {
namespace {

// Each operator has a value, and the factors by which the output's gradient enters the gradients of a and b.
struct Sum {
  static float value(float a, float b) { return a + b; }
  static float slope_a(float, float) { return 1; }
  static float slope_b(float, float) { return 1; }
};

struct Difference {
  static float value(float a, float b) { return a - b; }
  static float slope_a(float, float) { return 1; }
  static float slope_b(float, float) { return -1; }
};

struct Product {
  static float value(float a, float b) { return a * b; }
  static float slope_a(float, float b) { return b; }
  static float slope_b(float a, float) { return a; }
};

struct Quotient {
  static float value(float a, float b) { return a / b; }
  static float slope_a(float, float b) { return 1 / b; }
  static float slope_b(float a, float b) { return -a / (b * b); }
};

// NaN passes. Equal values get half the gradient each.
struct Maximum {
  static float value(float a, float b) { return (a < b) | (b != b) ? b : a; }
  static float slope_a(float a, float b) { return a > b ? 1.0f : a < b ? 0.0f : 0.5f; }
  static float slope_b(float a, float b) { return slope_a(b, a); }
};

struct Minimum {
  static float value(float a, float b) { return (b < a) | (b != b) ? b : a; }
  static float slope_a(float a, float b) { return a < b ? 1.0f : a > b ? 0.0f : 0.5f; }
  static float slope_b(float a, float b) { return slope_a(b, a); }
};

struct Comparison {
  static float slope_a(float, float) { return 0; }
  static float slope_b(float, float) { return 0; }
};

struct Greater : Comparison {
  static float value(float a, float b) { return a > b ? 1.0f : 0.0f; }
};

struct AtLeast : Comparison {
  static float value(float a, float b) { return a >= b ? 1.0f : 0.0f; }
};

struct Equal : Comparison {
  static float value(float a, float b) { return a == b ? 1.0f : 0.0f; }
};

struct Choice {
  static float value(float a, float b) { return b != 0 ? a : 0.0f; }
  static float slope_a(float, float b) { return b != 0 ? 1.0f : 0.0f; }
  static float slope_b(float, float) { return 0; }
};

// Returns an operand's strides in a loop over the output.
Strides repeated(const Shape& operand, const Shape& output) {
  Strides strides(output.size() - operand.size(), 0);
  const Strides own = row_major_strides(operand);
  for (std::size_t i = 0; i < operand.size(); ++i)
    strides.push_back(operand[i] == 1 && output[output.size() - operand.size() + i] != 1 ? 0 : own[i]);
  return strides;
}

// The output as rows along which the operands have constant strides; they are as long as the layouts allow.
struct Rows {
  Shape outer;
  Strides a, b;
  std::size_t size = 1, a_step = 1, b_step = 1;

  Rows(const Shape& output, Strides a_, Strides b_) : outer(output), a(std::move(a_)), b(std::move(b_)) {
    std::size_t a_next = 1, b_next = 1;  // the strides that continue the row
    while (!outer.empty()) {
      const std::size_t extent = outer.back(), a_stride = a.back(), b_stride = b.back();
      if (extent > 1) {
        if (size == 1) {
          a_step = a_stride;
          b_step = b_stride;
        } else if (a_stride != a_next || b_stride != b_next) {
          return;
        }
        size *= extent;
        a_next = a_step * size;
        b_next = b_step * size;
      }
      outer.pop_back();
      a.pop_back();
      b.pop_back();
    }
  }

  // Calls body(offset in the output, in a, in b) for each row, on all threads.
  template <class Body>
  void for_each(const Body& body) const {
    const std::size_t rows = elements(outer);
#pragma omp parallel for schedule(static) if (rows * size >= static_cast <std::size_t>(kParallelElements))
    for (std::size_t row = 0; row < rows; ++row) {
      std::size_t rest = row, a_offset = 0, b_offset = 0;
      for (std::size_t i = outer.size(); i-- > 0; rest /= outer[i]) {
        a_offset += rest % outer[i] * a[i];
        b_offset += rest % outer[i] * b[i];
      }
      body(row * size, a_offset, b_offset);
    }
  }
};

template <class Operator>
class BroadcastOp : public PlainOp {
 public:
  explicit BroadcastOp(const Arithmetic& operation, const Specs& inputs)
      : PlainOp(inputs, output_shape(operation, {inputs[0].shape, inputs[1].shape})),
        a_(repeated(inputs[0].shape, shape())),
        b_(repeated(inputs[1].shape, shape())),
        rows_(shape(), a_, b_) {
    constexpr bool kLinear = std::is_same_v<Operator, Sum> || std::is_same_v<Operator, Difference> ||
                             std::is_base_of_v<Comparison, Operator>;
    info_.inputs = {{.backward_reads = !kLinear}, {.backward_reads = !kLinear}};
    if (elements(inputs[0].shape) != elements(shape()) || elements(inputs[1].shape) != elements(shape()))
      need_scratch(elements(shape()) * sizeof(float));
  }

 private:
  void compute() override {
    rows_.for_each([&, a_step = rows_.a_step, b_step = rows_.b_step](std::size_t to, std::size_t a, std::size_t b) {
      float* y = output() + to;
      const float *p = input(0) + a, *q = input(1) + b;
      if (a_step == 1 && b_step == 1)
        for (std::size_t i = 0; i < rows_.size; ++i) y[i] = Operator::value(p[i], q[i]);
      else if (b_step == 0 && a_step == 1)
        for (std::size_t i = 0; i < rows_.size; ++i) y[i] = Operator::value(p[i], *q);
      else
        for (std::size_t i = 0; i < rows_.size; ++i) y[i] = Operator::value(p[i * a_step], q[i * b_step]);
    });
  }

  void differentiate() override {
    gradient(0, a_, [](float a, float b) { return Operator::slope_a(a, b); });
    gradient(1, b_, [](float a, float b) { return Operator::slope_b(a, b); });
  }

  // Sums the gradient of a repeated operand over the repetitions.
  template <class Slope>
  void gradient(std::size_t number, const Strides& strides, const Slope& slope) {
    float* const to = input_gradient(number);
    if (to == nullptr) return;
    const bool whole = elements(shape(number)) == elements(shape());
    float* const all = whole ? to : floats(own_scratch()).data();
    rows_.for_each([&, a_step = rows_.a_step, b_step = rows_.b_step](std::size_t at, std::size_t a, std::size_t b) {
      const float* dy = output_gradient() + at;
      const float *p = input(0) + a, *q = input(1) + b;
      float* d = all + at;
      for (std::size_t i = 0; i < rows_.size; ++i) {
        const float product = dy[i] * slope(p[i * a_step], q[i * b_step]);
        d[i] = std::is_same_v<Operator, Quotient> && dy[i] == 0 ? 0 : product;  // also if it divided by 0
      }
    });
    if (!whole) sum_elements({shape(), row_major_strides(shape()), strides}, all, to);
  }

  Strides a_, b_;
  Rows rows_;
};

// Two operands with the same shape and layout.
template <class Operator>
class ElementwiseOp : public Op {
 public:
  explicit ElementwiseOp(const TensorSpec& input) {
    info_.output = input;
    info_.inputs.assign(2, {});
    info_.backward_reads_output = false;
  }

  void bind(const Bindings& bindings) override { bindings_ = bindings; }

  void forward() override {
    const auto to = floats(bindings_.output);
    for_each_element(to.size(), [a = floats(bindings_.inputs[0]).data(), b = floats(bindings_.inputs[1]).data(),
                                 y = to.data()](auto i) { y[i] = Operator::value(a[i], b[i]); });
  }

  void backward(float) override {
    gradient(0, [](float a, float b) { return Operator::slope_a(a, b); });
    gradient(1, [](float a, float b) { return Operator::slope_b(a, b); });
  }

 private:
  template <class Slope>
  void gradient(std::size_t number, const Slope& slope) const {
    const auto to = floats(bindings_.input_gradients[number]);
    for_each_element(to.size(), [slope, a = floats(bindings_.inputs[0]).data(), b = floats(bindings_.inputs[1]).data(),
                                 dy = floats(bindings_.output_gradient).data(), d = to.data()](auto i) {
      d[i] = dy[i] * slope(a[i], b[i]) + 0.0f;
    });  // no -0 in the padding
  }

  Bindings bindings_;
};

// Images times factors that are constant over an image, in the images' layout: for each sample and channel {batch,
// channels, 1, 1} in squeeze and excitation (Hu et al., CVPR 2018), for each channel {channels, 1, 1} in layer scale
// (Touvron et al., ICCV 2021), or for each sample {batch, 1, 1, 1} in stochastic depth (Huang et al., ECCV 2016).
class ImageScaleOp : public Op {
 public:
  ImageScaleOp(const Specs& inputs, std::size_t images, const Shape& factors)
      : which_(images),
        batch_(inputs[images].shape[0]),
        images_(image_layout(inputs[images])),
        per_sample_(factors[0] > 1),
        per_channel_(factors[1] > 1) {
    const Shape all{batch_, inputs[images].shape[1], 1, 1};
    have_ = desc(inputs[1 - images]).reshape({factors.begin(), factors.end()});
    want_ = per_channel_ ? layout_like(inputs[images], factors) : plain_layout(factors);
    sums_ = layout_like(inputs[images], all);
    info_.output = inputs[images];
    info_.inputs.assign(2, {});
    info_.inputs[which_].gradient_may_overwrite = true;
    info_.backward_reads_output = false;
    info_.scratch_bytes = 2 * Scratch::bytes({Adapted::copy(have_, want_)}) + Scratch::bytes({sums_});
    info_.implementations = Adapted::implementations(have_, want_);
  }

  void bind(const Bindings& bindings) override {
    bindings_ = bindings;
    Scratch scratch(bindings.scratch);
    factors_ = {have_, want_, bindings.inputs[1 - which_], scratch};
    if (bindings.output_gradient && bindings.input_gradients[1 - which_])
      gradients_ = {have_, want_, bindings.input_gradients[1 - which_], scratch};
    plane_sums_ = static_cast<float*>(scratch.take(sums_).get_data_handle());
  }

  void forward() override {
    factors_.load();
    scale(floats(bindings_.inputs[which_]).data(), floats(bindings_.output).data());
  }

  void backward(float) override {
    factors_.load();
    if (bindings_.input_gradients[1 - which_]) {
      for_each_plane(images_, [&](std::size_t plane, auto block) { sum_plane<block>(plane, plane_sums_); });
      add_up(data(gradients_));
      gradients_.store();
    }
    if (bindings_.input_gradients[which_])
      scale(floats(bindings_.output_gradient).data(), floats(bindings_.input_gradients[which_]).data());
  }

 private:
  static float* data(const Adapted& adapted) { return static_cast<float*>(adapted.wanted().get_data_handle()); }
  std::size_t pixels() const { return images_.height * images_.width; }
  std::size_t image_planes() const { return images_.outer / batch_; }

  // Returns the index of a plane's first factor.
  std::size_t factor(std::size_t plane) const {
    if (!per_channel_) return per_sample_ ? plane / image_planes() : 0;
    return (per_sample_ ? plane : plane % image_planes()) * images_.inner;
  }

  void scale(const float* from, float* to) const {
    for_each_plane(images_, [&, factors = data(factors_)](std::size_t plane, auto block) {
      using Floats = typename Lanes<block>::Floats;
      const float* own = factors + factor(plane);
      for (std::size_t pixel = plane * pixels(); pixel < (plane + 1) * pixels(); ++pixel)
        for (std::size_t channel = 0; channel < images_.inner; channel += block) {
          const std::size_t at = pixel * images_.inner + channel;
          const auto by = per_channel_ ? load<Floats>(own + channel) : Floats{} + *own;
          store(load<Floats>(from + at) * by + Floats{}, to + at);  // no -0 in the padding
        }
    });
  }

  // Sums over a plane's pixels, some channels at a time, so that all channels in a channels-last image use what is in
  // the cache.
  template <std::size_t block>
  void sum_plane(std::size_t plane, float* sums) const {
    constexpr std::size_t kTogether = 16;
    using Floats = typename Lanes<block>::Floats;
    const float* values = floats(bindings_.inputs[which_]).data();
    const float* gradient = floats(bindings_.output_gradient).data();
    float* const to = sums + plane * images_.inner;
    std::fill_n(to, images_.inner, 0.0f);
    const std::size_t end = (plane + 1) * pixels();
    for (std::size_t first = plane * pixels(); first < end; first += kTogether)
      for (std::size_t channel = 0; channel < images_.inner; channel += block) {
        Floats sum{};
        for (std::size_t pixel = first; pixel < std::min(first + kTogether, end); ++pixel) {
          const std::size_t at = pixel * images_.inner + channel;
          sum += load<Floats>(values + at) * load<Floats>(gradient + at);
        }
        store(load<Floats>(to + channel) + sum, to + channel);
      }
  }

  void add_up(float* to) const {
    std::fill_n(to, want_.get_size() / sizeof(float), 0.0f);
    for (std::size_t plane = 0; plane < images_.outer; ++plane)
      for (std::size_t channel = 0; channel < images_.inner; ++channel)
        to[factor(plane) + (per_channel_ ? channel : 0)] += plane_sums_[plane * images_.inner + channel];
  }

  std::size_t which_;  // the input with the images
  std::size_t batch_;
  ImageLayout images_;
  bool per_sample_, per_channel_;   // whether the factors differ between samples, and between channels
  dnnl::memory::desc have_, want_;  // the factors'
  dnnl::memory::desc sums_;         // the planes' sums
  float* plane_sums_ = nullptr;
  Bindings bindings_;
  Adapted factors_, gradients_;
};

// Returns the shape of factors that are constant over an image with four dimensions; nothing if they are not.
std::optional<Shape> image_factors(const Shape& images, const Shape& factors) {
  if (images.size() != 4 || factors.size() > 4 || images[2] * images[3] == 1) return std::nullopt;
  Shape all(4 - factors.size(), 1);
  all.insert(all.end(), factors.begin(), factors.end());
  const auto one_or = [&](std::size_t axis, std::size_t extent) { return all[axis] == 1 || all[axis] == extent; };
  if (!one_or(0, images[0]) || !one_or(1, images[1]) || all[2] * all[3] != 1) return std::nullopt;
  return all;
}

template <class Operator>
std::unique_ptr<Op> plan(const Arithmetic& operation, const Specs& inputs) {
  // The quotient of two paddings would be NaN, and their comparison may be 1.
  constexpr bool kAnyLayout = !std::is_same_v<Operator, Quotient> && !std::is_base_of_v<Comparison, Operator>;
  if (kAnyLayout && inputs[0].shape == inputs[1].shape && desc(inputs[0]) == desc(inputs[1]))
    return std::make_unique<ElementwiseOp<Operator>>(inputs[0]);
  return std::make_unique<BroadcastOp<Operator>>(operation, inputs);
}

}  // namespace

std::unique_ptr<Op> plan(const Arithmetic& operation, const Specs& inputs, Mode, const Specs&) {
  using enum Arithmetic::Operator;
  switch (operation.op) {
    case sum:
      return plan<Sum>(operation, inputs);
    case difference:
      return plan<Difference>(operation, inputs);
    case product:
      for (const std::size_t images : {0, 1})
        if (const auto factors = image_factors(inputs[images].shape, inputs[1 - images].shape))
          return std::make_unique<ImageScaleOp>(inputs, images, *factors);
      return plan<Product>(operation, inputs);
    case quotient:
      return plan<Quotient>(operation, inputs);
    case maximum:
      return plan<Maximum>(operation, inputs);
    case minimum:
      return plan<Minimum>(operation, inputs);
    case greater:
      return plan<Greater>(operation, inputs);
    case at_least:
      return plan<AtLeast>(operation, inputs);
    case equal:
      return plan<Equal>(operation, inputs);
    case choice:
      return plan<Choice>(operation, inputs);
  }
  fail("unknown operator {}", static_cast<int>(operation.op));
}

}  // namespace annulus::cpu
