#include "src/onnx/layer_names.h"

#include <fmt/format.h>

#include <algorithm>

namespace annulus {
namespace {

std::vector<ParameterDeclaration> parameters_of(const GraphBuilder& builder, std::size_t i) {
  const GraphBuilder::Layer& layer = builder.layers()[i];
  const auto* operation = std::get_if<Operation>(&layer.operation);
  if (operation == nullptr) return {};
  Shapes inputs;
  for (const Value input : layer.inputs) inputs.push_back(builder.shape(input, 1));
  return parameters(*operation, inputs);
}

// Exporters store equal tensors once, so batch norm's scale may be stored as the running variance. Returns whether the
// tensor's name belongs to a parameter in this role.
bool fits(const std::string& name, Role role, bool trained) {
  const bool statistic = !trained || name.ends_with(".running_mean") || name.ends_with(".running_var");
  return statistic == (role == Role::statistic);
}

}  // namespace

LayerNames::LayerNames(const GraphBuilder& builder, const std::vector<bool>& used, const TrainedTensors& trained)
    : layers_(builder.layers().size()) {
  taken_layers_.insert("loss");
  keep_stored_names(builder, used, trained);
  for (const bool with_parameters : {true, false})
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      std::vector<std::string> declared;
      for (const ParameterDeclaration& parameter : parameters_of(builder, i)) declared.push_back(parameter.name);
      if (used[i] && declared.empty() != with_parameters)
        layers_[i].layer = unique(builder.layers()[i].name, declared, layers_[i]);
    }
}

// If several layers have a tensor, the first layer keeps the name.
void LayerNames::keep_stored_names(const GraphBuilder& builder, const std::vector<bool>& used,
                                   const TrainedTensors& trained) {
  std::set<const onnx::TensorProto*> named;
  for (const bool fitting : {true, false})
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      if (!used[i]) continue;
      const auto& stored = builder.layers()[i].stored;
      const auto declared = parameters_of(builder, i);
      for (std::size_t k = 0; k < stored.size(); ++k) {
        if (stored[k].tensor == nullptr) continue;
        const auto& decision = trained.of(*stored[k].tensor);
        std::string name = decision.parameter;
        const bool is_trained = decision.training != Training::never;
        if (name.empty() || fits(name, declared.at(k).role, is_trained) != fitting) continue;
        std::ranges::replace(name, '/', '.');
        if (!named.insert(stored[k].tensor).second || !taken_parameters_.insert(name).second) continue;
        layers_[i].parameters[declared[k].name] = name;
      }
    }
}

std::string LayerNames::unique(std::string name, const std::vector<std::string>& parameters, const Layer& layer) {
  std::ranges::replace(name, '/', '.');
  if (name.empty()) name = "layer";
  std::vector<std::string> free;
  std::ranges::copy_if(parameters, std::back_inserter(free),
                       [&](const std::string& parameter) { return !layer.parameters.contains(parameter); });
  const auto taken = [&](const std::string& candidate) {
    return taken_layers_.contains(candidate) || std::ranges::any_of(free, [&](const std::string& parameter) {
             return taken_parameters_.contains(parameter_name(candidate, parameter));
           });
  };
  std::string candidate = name;
  for (int& number = numbers_[name]; taken(candidate); ++number) candidate = fmt::format("{}_{}", name, number + 2);
  taken_layers_.insert(candidate);
  for (const std::string& parameter : free) taken_parameters_.insert(parameter_name(candidate, parameter));
  return candidate;
}

}  // namespace annulus
