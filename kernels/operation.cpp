#include "kernels/operation.h"

namespace annulus {

std::string_view name(const Operation& operation) {
  if (const auto* activation = std::get_if<Activation>(&operation)) return name(activation->function);
  if (const auto* arithmetic = std::get_if<Arithmetic>(&operation)) return name(arithmetic->op);
  if (const auto* computed = std::get_if<ComputedWeights>(&operation))
    return std::visit([](const auto& o) -> std::string_view { return o.kName; }, computed->layer);
  return std::visit([](const auto& o) -> std::string_view { return o.kName; }, operation);
}

Shape output_shape(const Operation& operation, const Shapes& inputs) {
  return std::visit([&](const auto& o) { return o.output_shape(inputs); }, operation);
}

std::vector<ParameterDeclaration> parameters(const Operation& operation, const Shapes& inputs) {
  return std::visit(
      [&](const auto& o) -> std::vector<ParameterDeclaration> {
        if constexpr (requires { o.parameters(inputs); }) return o.parameters(inputs);
        return {};
      },
      operation);
}

std::uint64_t flops(const Operation& operation, const Shapes& inputs) {
  return std::visit(
      [&](const auto& o) -> std::uint64_t {
        if constexpr (requires { o.flops(inputs); }) return o.flops(inputs);
        return 0;
      },
      operation);
}

}  // namespace annulus
