#pragma once

#include <vector>

#include "kernels/cpu/plan/dnnl_memory.h"
#include "kernels/cpu/plan/operations.h"

namespace annulus::cpu {

// An operation on row-major tensors. Inputs in another layout are reordered to the scratch before it runs, and their
// gradients from the scratch afterwards.
class PlainOp : public Op {
 public:
  void bind(const Bindings& bindings) final;
  void forward() final;
  void backward(float sample_weight) final;

 protected:
  PlainOp(const Specs& inputs, const Shape& output);

  // Declares parameters, row-major.
  void declare(const std::vector<ParameterDeclaration>& parameters);
  // Requests scratch memory besides what reordering needs: see own_scratch().
  void need_scratch(std::size_t bytes);

  virtual void bound() {}  // everything below is valid now
  virtual void compute() = 0;
  // Writes the gradients that are needed. Not called if none is.
  virtual void differentiate() = 0;

  const Shape& shape(std::size_t input) const { return inputs_[input].shape; }
  const Shape& shape() const { return info_.output.shape; }
  // The last operation has no output gradient.
  bool training() const { return bindings_.output_gradient || !bindings_.parameter_gradients.empty(); }

  const Bindings& bindings() const { return bindings_; }
  DeviceView input_view(std::size_t number) const { return view(adapted_values_[number]); }  // row-major
  DeviceView gradient_view(std::size_t number) const { return view(adapted_gradients_[number]); }

  const float* input(std::size_t number) const { return values_[number]; }
  float* output() const { return floats(bindings_.output).data(); }
  const float* parameter(std::size_t number) const { return floats(bindings_.parameters[number]).data(); }
  const float* output_gradient() const { return floats(bindings_.output_gradient).data(); }
  float* input_gradient(std::size_t number) const { return gradients_[number]; }  // null if it is not needed
  // Whether to add to the input's gradient instead of writing it. False unless InputUse::adds_to_gradient.
  bool accumulates(std::size_t number) const { return bindings_.accumulates(number); }
  float* parameter_gradient(std::size_t number) const {  // null if the parameters are frozen
    return floats(bindings_.parameter_gradients[number]).data();
  }
  float sample_weight() const { return sample_weight_; }  // the argument of backward(), which calls differentiate()
  bool trains_parameters() const { return training() && !info_.parameters.empty() && parameter_gradient(0) != nullptr; }
  DeviceView own_scratch() const { return own_scratch_; }

 private:
  static DeviceView view(const Adapted& adapted) {
    return {static_cast<std::byte*>(adapted.wanted().get_data_handle()), adapted.wanted().get_desc().get_size()};
  }
  dnnl::memory::desc plain(std::size_t input) const { return plain_layout(inputs_[input].shape, inputs_[input].type); }

  Specs inputs_;
  Bindings bindings_;
  float sample_weight_ = 0;
  std::size_t own_scratch_bytes_ = 0;
  DeviceView own_scratch_;
  std::vector<Adapted> adapted_values_, adapted_gradients_;
  std::vector<const float*> values_;
  std::vector<float*> gradients_;
};

}  // namespace annulus::cpu
