#include "kernels/base/error.h"
#include "src/onnx/fold.h"
#include "src/onnx/reader.h"

// Weights that are stored as whole numbers.
namespace annulus {
namespace {

// The weights become real numbers, which layers train.
void read_dequantized(NodeReader& n) {
  if (n.is_layer(0)) fail("computed values cannot be quantized in training: export the network before quantization");
  const HostTensor &values = n.expect_constant(0), &scale = n.expect_constant(1);
  const HostTensor* zero = n.has(2) ? &n.expect_constant(2) : nullptr;
  auto weights = evaluate(n.op(), n.attributes, {&values, &scale, zero});
  n.set_weights(std::move(*weights));
}

void read_quantized(NodeReader&) {
  fail("computed values cannot be quantized in training: export the network before quantization");
}

}  // namespace

void add_quantized(ReadNodes& all) {
  all["DequantizeLinear"] = read_dequantized;
  all["QuantizeLinear"] = read_quantized;
}

}  // namespace annulus
