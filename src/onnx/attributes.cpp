#include "src/onnx/attributes.h"

namespace annulus {

const onnx::AttributeProto* Attributes::find(std::string_view name) const {
  for (const onnx::AttributeProto& attribute : node_->attribute())
    if (attribute.name() == name) return &attribute;
  return nullptr;
}

std::int64_t Attributes::whole(std::string_view name, std::int64_t missing) const {
  const auto* found = find(name);
  return found != nullptr ? found->i() : missing;
}

float Attributes::real(std::string_view name, float missing) const {
  const auto* found = find(name);
  return found != nullptr ? found->f() : missing;
}

std::string Attributes::text(std::string_view name, const std::string& missing) const {
  const auto* found = find(name);
  return found != nullptr ? found->s() : missing;
}

std::vector<std::int64_t> Attributes::wholes(std::string_view name) const {
  const auto* found = find(name);
  if (found == nullptr) return {};
  return {found->ints().begin(), found->ints().end()};
}

std::vector<float> Attributes::reals(std::string_view name) const {
  const auto* found = find(name);
  if (found == nullptr) return {};
  return {found->floats().begin(), found->floats().end()};
}

const onnx::TensorProto* Attributes::tensor(std::string_view name) const {
  const auto* found = find(name);
  return found != nullptr ? &found->t() : nullptr;
}

}  // namespace annulus
