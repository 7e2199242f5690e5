#pragma once

#include "kernels/cpu/plan/dnnl_pass.h"
#include "kernels/cpu/plan/plain_op.h"

namespace annulus::cpu {

// An operation on row-major tensors with a single input, weights and perhaps a bias, computed by oneDNN.
class PlainPassesOp : public PlainOp {
 protected:
  using PlainOp::PlainOp;

  // Takes the passes, with tensors in this order: the input or its gradient, the output or its gradient, and the
  // parameters or their gradients; for `backward_data`, only the weights. To be called last by the constructor;
  // training's passes are empty in inference.
  void use(DnnlPass forward, DnnlPass backward_weights, DnnlPass backward_data);

 private:
  void bound() final;
  void compute() final;
  void differentiate() final;

  DnnlPass forward_, backward_weights_, backward_data_;
};

}  // namespace annulus::cpu
