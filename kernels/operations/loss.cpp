#include "kernels/operations/loss.h"

#include "kernels/base/error.h"
#include "kernels/operations/shapes.h"

namespace annulus {

Shape SoftmaxCrossEntropy::output_shape(const Shapes& inputs) const {
  const Shape& in = inputs[0];
  if (!(smoothing >= 0 && smoothing < 1)) fail("invalid label smoothing {}: must be at least 0 and below 1", smoothing);
  if (inputs.size() != 2 || in.size() != 2 || (inputs[1] != Shape{in[0]} && inputs[1] != Shape{in[0], 3}))
    fail("softmax cross-entropy takes {{batch, classes}} and {{batch}} or {{batch, 3}}; the first is {}",
         to_string(in));
  return {3};
}

std::vector<ParameterDeclaration> SoftmaxCrossEntropy::parameters(const Shapes&) const {
  return {{"metrics", {2}, Role::metric}};
}

}  // namespace annulus
