#pragma once

#include <memory>
#include <vector>

#include "kernels/cpu/cpu_device.h"

namespace annulus::test {

using Values = std::vector<float>;  // row-major

// An operation on the CPU, over plain tensors. Operations fused on the GPU may be separate here: batch norm, addition
// and ReLU.
class Reference {
 public:
  Reference(const Operation& operation, const std::vector<Shape>& inputs, const std::vector<Values>& input_values,
            const std::vector<Values>& parameter_values);

  Values forward();

  // Takes the tested output, so that ReLUs have the same active elements.
  void backward(const Values& output, const Values& output_gradient, float sample_weight);

  Values input_gradient(std::size_t input);
  Values parameter_gradient(std::size_t parameter);

 private:
  struct Tensor {
    Tensor(Device& device, const TensorSpec& spec, const Values& values);
    Values read(Device& device) const;

    TensorSpec spec;
    Buffer memory;
  };
  struct Step {
    std::unique_ptr<Op> op;
    Buffer scratch;
    std::unique_ptr<Tensor> output, gradient;
  };

  void append(const Operation& operation, const std::vector<Shape>& shapes,
              const std::vector<Values>& parameter_values);

  cpu::CpuDevice device_{1};
  std::vector<Tensor> inputs_, input_gradients_, parameters_, parameter_gradients_;
  std::vector<Step> steps_;
};

}  // namespace annulus::test
