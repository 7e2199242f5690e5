#include "kernels/operations/loss.h"

#include <cmath>

#include "kernels/base/error.h"
#include "kernels/operations/shapes.h"

namespace annulus {

Shape SoftmaxCrossEntropy::output_shape(const Shapes& inputs) const {
  const Shape& in = inputs[0];
  if (!(smoothing >= 0 && smoothing < 1)) fail("invalid label smoothing {}: must be at least 0 and below 1", smoothing);
  if (inputs.size() != 2 || in.size() != 2 || (inputs[1] != Shape{in[0]} && inputs[1] != Shape{in[0], 3}))
    fail("softmax cross-entropy takes {{batch, classes}} and {{batch}} or {{batch, 3}}; the first is {}",
         to_string(in));
  if (!class_weights.empty() && class_weights.size() != in[1])
    fail("softmax cross-entropy of {} classes with {} class weights", in[1], class_weights.size());
  for (const float weight : class_weights)
    if (!(weight > 0) || !std::isfinite(weight)) fail("invalid class weight {}: must be above 0", weight);
  return {3};
}

std::vector<ParameterDeclaration> SoftmaxCrossEntropy::parameters(const Shapes&) const {
  return {{"metrics", {2}, Role::metric}};
}

}  // namespace annulus
