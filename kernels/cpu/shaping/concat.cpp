#include <algorithm>

#include "kernels/cpu/plan/dnnl_memory.h"
#include "kernels/cpu/plan/operations.h"

namespace annulus::cpu {
namespace {

// Returns a blocked layout's channel block; 1 in plain and channels-last layouts.
std::size_t channel_block(const TensorSpec& spec) {
  const auto& blocking = desc(spec).data.format_desc.blocking;
  return blocking.inner_nblks == 1 ? static_cast<std::size_t>(blocking.inner_blks[0]) : 1;
}

// An input's part of the output: `size` floats of each sample's output, beginning at `begin`. (With another axis than
// the channels, a sample is what comes after the dimensions before it.)
struct Part {
  TensorSpec input;
  dnnl::memory::desc layout;  // a layout that keeps a sample's part contiguous
  std::size_t begin, size;
  Adapted values, gradient;
  bool wanted = false, accumulate = false;
};

float* data(const Adapted& adapted) {
  return static_cast<float*>(adapted.wanted().get_data_handle());
}

// In plain layouts, and in blocked layouts with full blocks, an output sample concatenates its parts. An input in
// another layout is reordered first.
class ConcatOp : public Op {
 public:
  ConcatOp(const Concat& operation, const Specs& inputs) {
    for (std::size_t i = 0; i < operation.axis; ++i) batch_ *= inputs[0].shape[i];
    const std::size_t block = channel_block(inputs[0]);
    const auto full = [&](const TensorSpec& input) { return input.shape[1] % block == 0; };
    const bool blocked = block > 1 && operation.axis == 1 && std::ranges::all_of(inputs, full);
    const auto layout = [&](const Shape& shape) {
      return blocked ? layout_like(inputs[0], shape) : plain_layout(shape);
    };
    std::vector<Shape> shapes;
    for (const TensorSpec& input : inputs) {
      const std::size_t size = elements(input.shape) / batch_;
      parts_.push_back({input, layout(input.shape), sample_size_, size, {}, {}});
      sample_size_ += size;
      shapes.push_back(input.shape);
    }
    const Shape shape = output_shape(operation, shapes);
    info_.output = spec(shape, layout(shape));
    info_.inputs.assign(inputs.size(), {.backward_reads = false, .adds_to_gradient = true});
    info_.backward_reads_output = false;
    for (const Part& part : parts_) {
      const auto bytes = Scratch::bytes({Adapted::copy(desc(part.input), part.layout)});
      info_.scratch_bytes = std::max(info_.scratch_bytes, bytes);
      std::ranges::copy(Adapted::implementations(desc(part.input), part.layout),
                        std::back_inserter(info_.implementations));
    }
  }

  void bind(const Bindings& bindings) override {
    output_values_ = floats(bindings.output).data();
    output_gradient_ = floats(bindings.output_gradient).data();
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      Part& part = parts_[i];
      Scratch for_values(bindings.scratch), for_gradient(bindings.scratch);  // parts are worked on in turn
      part.values = {desc(part.input), part.layout, bindings.inputs[i], for_values};
      part.wanted = i < bindings.input_gradients.size() && bindings.input_gradients[i];
      if (!part.wanted) continue;
      part.accumulate = bindings.accumulates(i);
      part.gradient = {desc(part.input), part.layout, bindings.input_gradients[i], for_gradient};
    }
  }

  void forward() override {
    for (const Part& part : parts_) {
      part.values.load();
      for_each_sample(part.values, part, [&](std::size_t place, const float* values) {
        std::copy_n(values, part.size, output_values_ + place);
      });
    }
  }

  // Part by part, because two parts may be the same value.
  void backward(float) override {
    for (const Part& part : parts_) {
      if (!part.wanted) continue;
      if (part.accumulate) part.gradient.load();
      for_each_sample(part.gradient, part, [&](std::size_t place, float* gradient) {
        const float* from = output_gradient_ + place;
        for (std::size_t i = 0; i < part.size; ++i) gradient[i] = (part.accumulate ? gradient[i] : 0) + from[i];
      });
      part.gradient.store();
    }
  }

 private:
  // Calls body(index of a sample's part in the output, the part itself).
  template <class Body>
  void for_each_sample(const Adapted& adapted, const Part& part, const Body& body) const {
    float* const all = data(adapted);
#pragma omp parallel for schedule(static)
    for (std::size_t sample = 0; sample < batch_; ++sample)
      body(sample * sample_size_ + part.begin, all + sample * part.size);
  }

  std::size_t batch_ = 1, sample_size_ = 0;
  std::vector<Part> parts_;
  float* output_values_ = nullptr;
  const float* output_gradient_ = nullptr;
};

}  // namespace

std::unique_ptr<Op> plan(const Concat& operation, const Specs& inputs, Mode, const Specs&) {
  return std::make_unique<ConcatOp>(operation, inputs);
}

}  // namespace annulus::cpu
