#include "kernels/operations/loss.h"

#include <cmath>

#include "kernels/base/error.h"
#include "kernels/operations/shapes.h"

namespace annulus {

namespace {

Shape loss_shape(const char* name, const Shapes& inputs, float smoothing, const std::vector<float>& class_weights) {
  const Shape& in = inputs[0];
  if (!(smoothing >= 0 && smoothing < 1)) fail("invalid label smoothing {}: must be at least 0 and below 1", smoothing);
  if (inputs.size() != 2 || in.size() != 2 || (inputs[1] != Shape{in[0]} && inputs[1] != Shape{in[0], 3}))
    fail("{} takes {{batch, classes}} and {{batch}} or {{batch, 3}}; the first is {}", name, to_string(in));
  if (!class_weights.empty() && class_weights.size() != in[1])
    fail("{} of {} classes with {} class weights", name, in[1], class_weights.size());
  for (const float weight : class_weights)
    if (!(weight > 0) || !std::isfinite(weight)) fail("invalid class weight {}: must be above 0", weight);
  return {3};
}

Shape target_loss_shape(const char* name, const Shapes& inputs) {
  if (inputs.size() != 2 || inputs[0].size() != 2 || inputs[1] != inputs[0])
    fail("{} takes values and targets of the same shape, {{batch, width}}; the values are {}", name,
         to_string(inputs[0]));
  return {2};
}

// The first two outputs' means over the global batch.
std::vector<ParameterDeclaration> metrics() {
  return {{"metrics", {2}, Role::metric}};
}

}  // namespace

Shape SoftmaxCrossEntropy::output_shape(const Shapes& inputs) const {
  return loss_shape(kName, inputs, smoothing, class_weights);
}

std::vector<ParameterDeclaration> SoftmaxCrossEntropy::parameters(const Shapes&) const {
  return metrics();
}

Shape BinaryCrossEntropy::output_shape(const Shapes& inputs) const {
  return loss_shape(kName, inputs, smoothing, class_weights);
}

std::vector<ParameterDeclaration> BinaryCrossEntropy::parameters(const Shapes&) const {
  return metrics();
}

Shape MultiLabelCrossEntropy::output_shape(const Shapes& inputs) const {
  return target_loss_shape(kName, inputs);
}

std::vector<ParameterDeclaration> MultiLabelCrossEntropy::parameters(const Shapes&) const {
  return metrics();
}

Shape MeanSquaredError::output_shape(const Shapes& inputs) const {
  return target_loss_shape(kName, inputs);
}

std::vector<ParameterDeclaration> MeanSquaredError::parameters(const Shapes&) const {
  return metrics();
}

}  // namespace annulus
