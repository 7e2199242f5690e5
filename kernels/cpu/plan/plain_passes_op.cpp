#include "kernels/cpu/plan/plain_passes_op.h"

#include <utility>

namespace annulus::cpu {

void PlainPassesOp::use(DnnlPass forward, DnnlPass backward_weights, DnnlPass backward_data) {
  forward_ = std::move(forward);
  backward_weights_ = std::move(backward_weights);
  backward_data_ = std::move(backward_data);
  need_scratch(most_scratch({&forward_, &backward_weights_, &backward_data_}));
  for (const std::string& name : implementations_of({&forward_, &backward_weights_, &backward_data_}))
    info_.implementations.push_back(name);
}

void PlainPassesOp::bound() {
  forward_.bind(operands(input_view(0), bindings().output, bindings().parameters), own_scratch());
  if (!training()) return;
  const DeviceView gradient = bindings().output_gradient;
  if (trains_parameters())
    backward_weights_.bind(operands(input_view(0), gradient, bindings().parameter_gradients), own_scratch());
  if (input_gradient(0) != nullptr)
    backward_data_.bind({gradient_view(0), gradient, bindings().parameters[0]}, own_scratch());
}

void PlainPassesOp::compute() {
  forward_.run();
}

void PlainPassesOp::differentiate() {
  backward_weights_.run();
  backward_data_.run();
}

}  // namespace annulus::cpu
