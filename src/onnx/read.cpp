#include "src/onnx/read.h"

#include <algorithm>
#include <set>

#include "kernels/base/error.h"
#include "models/layers.h"
#include "src/io/printable.h"
#include "src/onnx/layer_names.h"
#include "src/onnx/reader.h"
#include "src/onnx/trained_summary.h"

namespace annulus {
namespace {

// The network's first output, and the number of its classes.
struct Logits {
  Value value;
  std::size_t classes;
};

Logits expect_logits(const Reader& reader) {
  const Value logits = reader.logits();
  const auto place = reader.draft().batch(logits);
  const Shape shape = reader.draft().shape(logits, 1);
  if (shape.size() == 2 && place == BatchPlace{0, 1} && shape[0] == 1) return {logits, shape[1]};
  fail("its first output is {} for one image, but a classifier's is {{batch, classes}}",
       shape.empty() ? "a number" : to_string(shape));
}

template <class Layer>
bool set_units(Operation& operation, std::size_t units, std::size_t classes) {
  auto* layer = std::get_if<Layer>(&operation);
  if (layer == nullptr) return false;
  auto& own = [&]() -> std::size_t& {
    if constexpr (requires { layer->units; })
      return layer->units;
    else
      return layer->channels;
  }();
  if (own != units) return false;
  own = classes;
  return true;
}

// Layers between the last one with weights and the logits, in which the classes may be a dimension.
bool passes(Operation& operation, std::size_t units, std::size_t classes) {
  if (auto* reshape = std::get_if<Reshape>(&operation)) {
    std::ranges::replace(reshape->shape, units, classes);
    return true;
  }
  return std::holds_alternative<Relu>(operation) || std::holds_alternative<AdaptiveAveragePool>(operation) ||
         std::holds_alternative<AveragePool>(operation) || std::holds_alternative<Mean>(operation) ||
         std::holds_alternative<Activation>(operation) || std::holds_alternative<Dropout>(operation);
}

// Gives the last layer with weights another number of units. Its values no longer fit.
void replace_classifier(std::vector<Draft::Layer>& layers, const Logits& logits, std::size_t classes) {
  const std::size_t units = logits.classes;
  for (Value value = logits.value; Graph::has_node(value);) {
    Draft::Layer& layer = layers[value - Graph::output(0)];
    auto* operation = std::get_if<Operation>(&layer.operation);
    if (operation == nullptr) break;
    if (set_units<Dense>(*operation, units, classes) || set_units<Linear>(*operation, units, classes) ||
        set_units<Convolution>(*operation, units, classes)) {
      layer.stored.clear();
      return;
    }
    if (!passes(*operation, units, classes)) break;
    value = layer.inputs[0];
  }
  fail("it has {} classes, but the data {}, and its last layer cannot be replaced: export it with {} classes", units,
       classes, classes);
}

// Values of a parameter in the graph's order.
std::vector<float> parameter_values(const Stored& stored, const ParameterDeclaration& declared) {
  std::vector<float> values;
  if (stored.tensor != nullptr) {
    values = read_floats(*stored.tensor);
  } else {
    for (const double value : stored.computed->reals) values.push_back(static_cast<float>(value));
  }
  if (values.size() != elements(declared.shape))
    fail("{} has {} values, but {} needs {}", stored.tensor != nullptr ? stored.tensor->name() : "a constant",
         values.size(), declared.name, to_string(declared.shape));
  if (!stored.transposed) return values;
  const std::size_t rows = declared.shape[0], columns = values.size() / rows;
  std::vector<float> transposed(values.size());
  for (std::size_t row = 0; row < rows; ++row)
    for (std::size_t column = 0; column < columns; ++column)
      transposed[row * columns + column] = values[column * rows + row];
  return transposed;
}

// Adds a draft's layers to a network.
class Assembly {
 public:
  Assembly(const Reader& reader, const Task& task, ImportedNetwork& to) : reader_(reader), task_(task), to_(to) {}

  // Returns the tensors that training changes.
  std::set<const onnx::TensorProto*> run() {
    const Draft& draft = reader_.draft();
    auto layers = draft.layers();
    const Logits logits = expect_logits(reader_);
    const auto used = draft.used_layers(logits.value);
    if (logits.classes != task_.classes) {
      replace_classifier(layers, logits, task_.classes);
      to_.notes.push_back(
          fmt::format("the last layer is replaced: it has {} classes, the data {}", logits.classes, task_.classes));
    }
    const LayerNames names(draft, used, reader_.trained());
    for (const Value outside : {Graph::kImages, Graph::kLabels, Graph::kSampleKeys}) renumbered_[outside] = outside;
    for (std::size_t i = 0; i < layers.size(); ++i)
      if (used[i]) renumbered_[Graph::output(i)] = add(names[i], std::move(layers[i]));
    if (copies_ > 0)
      to_.notes.push_back(
          copies_ == 1
              ? "1 parameter is stored together with an equal one; it is trained on its own"
              : fmt::format("{} parameters are stored together with equal ones; each is trained on its own", copies_));
    to_.graph = with_loss(std::move(to_.graph), task_, renumbered_.at(logits.value));
    return std::move(changed_);
  }

 private:
  Value add(const LayerNames::Layer& names, Draft::Layer layer) {
    if (std::holds_alternative<Erf>(layer.operation)) fail("node {}: Erf is supported only within GELU", names.layer);
    auto& operation = std::get<Operation>(layer.operation);
    if (auto* dropout = std::get_if<Dropout>(&operation)) dropout->number = dropouts_++;
    for (Value& input : layer.inputs) input = renumbered_.at(input);
    const auto declared = parameters(operation, input_shapes(layer.inputs));
    Node node{.name = names.layer, .operation = operation, .inputs = layer.inputs};
    for (const auto& [parameter, name] : names.parameters)
      if (name != parameter_name(node.name, parameter)) node.names[parameter] = name;
    for (std::size_t i = 0; i < layer.stored.size(); ++i) {
      if (!layer.stored[i].frozen || declared.at(i).role == Role::statistic) continue;
      node.frozen.push_back(declared[i].name);
      if (!names.parameters.contains(declared[i].name)) node.constants.push_back(declared[i].name);
    }
    for (std::size_t i = 0; i < layer.stored.size(); ++i)
      add_parameter(parameter_name(node, declared[i].name), layer.stored[i], declared[i]);
    return to_.graph.add(std::move(node));
  }

  Shapes input_shapes(const std::vector<Value>& inputs) const {
    Shapes shapes;
    for (const Value input : inputs) shapes.push_back(to_.graph.shape(input, 1));
    return shapes;
  }

  void add_parameter(const std::string& name, const Stored& stored, const ParameterDeclaration& declared) {
    if (stored.tensor != nullptr) {
      if (!stored.frozen || declared.role == Role::statistic) changed_.insert(stored.tensor);
      if (!seen_.insert(stored.tensor).second)
        copies_ += !stored.frozen;
      else if (!reader_.depends_on_values(*stored.tensor))
        to_.stored.push_back(stored.tensor->name());
      if (OnnxFile::stripped(*stored.tensor)) return;
    }
    to_.values[name] = parameter_values(stored, declared);
  }

  const Reader& reader_;
  const Task& task_;
  ImportedNetwork& to_;
  std::uint32_t dropouts_ = 0;
  std::size_t copies_ = 0;             // of tensors that the exporter stored once for several layers
  std::map<Value, Value> renumbered_;  // a draft's value: the graph's
  std::set<const onnx::TensorProto*> seen_, changed_;
};

std::string size_hint(const OnnxFile& file, const Task& task) {
  const auto shape = file.input_shape();
  if (shape[2] == task.image.height && shape[3] == task.image.width) return "";
  return fmt::format(" (it was exported for images of {}x{}, and these are of {}x{})", shape[2], shape[3],
                     task.image.height, task.image.width);
}

void add_output_notes(const OnnxFile& file, std::vector<std::string>& notes) {
  for (int i = 1; i < file.graph().output_size(); ++i)
    notes.push_back(fmt::format("its output {} is dropped: only the first is trained", file.graph().output(i).name()));
}

}  // namespace

ImportedNetwork read_network(const OnnxFile& file, const Task& task) {
  Reader reader(file, task);
  reader.run();
  if (!reader.problems().empty())
    fail("{}: {}{}{}", file.name(), reader.problems()[0],
         reader.problems().size() > 1
             ? fmt::format(", and {} more: see `annulus models --check`", reader.problems().size() - 1)
             : "",
         size_hint(file, task));
  ImportedNetwork network{Graph(task.image), {}, {}, reader.notes(), {}};
  network.pixels = reader.pixels();
  add_output_notes(file, network.notes);
  try {
    const auto changed = Assembly(reader, task, network).run();
    network.trained = summarize(reader, file, network.graph, changed, network.notes);
  } catch (const Error& error) {
    fail("{}: {}{}", file.name(), printable(error.what()), size_hint(file, task));
  }
  return network;
}

std::string without_parameters(const OnnxFile& file, const ImportedNetwork& network) {
  return file.without_values(network.stored, network.pixels);
}

std::vector<std::string> problems(const OnnxFile& file, const Task& task) {
  Reader reader(file, task);
  reader.run();
  if (!reader.problems().empty()) return reader.problems();
  try {
    read_network(file, task);
  } catch (const Error& error) {
    return {error.what()};
  }
  return {};
}

Task exported_task(const OnnxFile& file) {
  const auto shape = file.input_shape();
  Task task = neutral_task({shape[2], shape[3], shape[1]}, 1);
  Reader reader(file, task);
  reader.run();
  if (!reader.problems().empty()) return task;
  try {
    task.classes = expect_logits(reader).classes;
  } catch (const Error& error) {
    fail("{}: {}", file.name(), printable(error.what()));
  }
  return task;
}

}  // namespace annulus
