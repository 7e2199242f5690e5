#include <algorithm>

#include "kernels/base/error.h"
#include "src/onnx/node_scope.h"
#include "src/onnx/reader.h"

// Layers with weights that are computed from parameters.
namespace annulus {
namespace {

// Returns the layer with parameters as inputs; nothing if no device computes that.
std::optional<ComputedWeights> with_computed_weights(const Operation& operation) {
  return std::visit(
      [](const auto& layer) -> std::optional<ComputedWeights> {
        using Layer = std::decay_t<decltype(layer)>;
        if constexpr (std::is_same_v<Layer, Dense>)
          return ComputedWeights{Linear{.units = layer.units, .bias = layer.bias}};
        else if constexpr (std::is_constructible_v<decltype(ComputedWeights::layer), Layer>)
          return ComputedWeights{layer};
        else
          return std::nullopt;
      },
      operation);
}

}  // namespace

Stored NodeReader::expect_stored(std::size_t input, std::string_view what) const {
  if (const auto found = stored(input)) return *found;
  if (is_layer(input)) fail("its {} computed from the images: dynamic weights are not supported", what);
  if (as<RandomMask>(input) != nullptr) fail("its {} random numbers: use Dropout", what);
  fail("its {} not real numbers", what);
}

bool NodeReader::lies_otherwise_elsewhere(const Stored& parameter) const {
  if (parameter.tensor == nullptr || !parameter.transposed) return false;
  const auto readers = reader_.readers_.find(parameter.tensor->name());
  return reader_.trained_.of(*parameter.tensor).training == Training::always && readers != reader_.readers_.end() &&
         readers->second > 1;
}

// A computed value with a stored tensor's elements in order is this tensor. A tensor that other nodes read as it lies
// is transposed as a value, so that all train a single parameter.
void NodeReader::resolve(Stored& parameter, const ParameterDeclaration& declared) {
  if (lies_otherwise_elsewhere(parameter))
    parameter = {.value = value(Item(FileTensor{parameter.tensor, parameter.transposed}))};
  if (!parameter.value) return;
  Value value = *parameter.value;
  if (parameter.transposed) value = transpose(value, {1, 0});
  parameter = {.value = reshape(value, declared.shape)};
  if (reader_.builder_.computed_by<Learned>(*parameter.value) != nullptr)
    parameter = Stored(reader_.builder_.layer(*parameter.value).stored[0]);
}

// Returns a parameter as a value. A parameter that is trained in this layer only becomes a separate layer.
Value NodeReader::value(const Stored& parameter, const std::string& layer, const ParameterDeclaration& declared) {
  if (parameter.value) return *parameter.value;
  const bool own =
      parameter.tensor == nullptr || reader_.trained_.of(*parameter.tensor).training == Training::in_layers;
  if (own && !parameter.frozen)
    return reader_.builder_.add(
        {layer, Operation(Learned{declared.shape, declared.role, declared.name}), {}, {parameter}});
  const Value found = parameter.tensor != nullptr ? value(Item(FileTensor{parameter.tensor, parameter.transposed}))
                                                  : value(Item(parameter.computed));
  return reshape(found, declared.shape);
}

Value NodeReader::add(Operation operation, std::vector<Value> inputs, std::vector<Stored> parameters) {
  Shapes shapes;
  for (const Value input : inputs) shapes.push_back(shape(input));
  const auto declared = annulus::parameters(operation, shapes);
  for (std::size_t i = 0; i < parameters.size(); ++i) resolve(parameters[i], declared.at(i));
  if (std::ranges::none_of(parameters, [](const Stored& p) { return p.value.has_value(); }))
    return append(std::move(operation), std::move(inputs), std::move(parameters));
  const auto computed = with_computed_weights(operation);
  if (!computed) fail("its weights are computed from parameters, which is not supported for this operator");
  const std::string module = module_of(node_), layer = module.empty() ? default_name() : module;
  for (std::size_t i = 0; i < parameters.size(); ++i) inputs.push_back(value(parameters[i], layer, declared[i]));
  return append(*computed, std::move(inputs), {});
}

}  // namespace annulus
