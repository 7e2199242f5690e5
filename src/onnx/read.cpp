#include "src/onnx/read.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "kernels/base/error.h"
#include "models/zoo/layers.h"
#include "src/io/printable.h"
#include "src/onnx/language_model.h"
#include "src/onnx/layer_names.h"
#include "src/onnx/reader.h"
#include "src/onnx/trained_summary.h"

namespace annulus {
namespace {

// The network's first output, and the class count.
struct Logits {
  Value value;
  std::size_t classes;
};

Logits expect_logits(const Reader& reader) {
  const Value logits = reader.output();
  const auto place = reader.builder().batch(logits);
  const Shape shape = reader.builder().shape(logits, 1);
  if (shape.size() == 2 && place == BatchPlace{0, 1} && shape[0] == 1) return {logits, shape[1]};
  fail("its first output is {} for one {}, but a classifier's is {{batch, classes}}",
       shape.empty() ? "a number" : to_string(shape), reader.sample());
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

// Layers between the last layer with weights and the logits, in which the classes may be a dimension.
bool passes(Operation& operation, std::size_t units, std::size_t classes) {
  if (auto* reshape = std::get_if<Reshape>(&operation)) {
    std::ranges::replace(reshape->shape, units, classes);
    return true;
  }
  return std::holds_alternative<Relu>(operation) || std::holds_alternative<AdaptiveAveragePool>(operation) ||
         std::holds_alternative<AveragePool>(operation) || std::holds_alternative<Mean>(operation) ||
         std::holds_alternative<Activation>(operation) || std::holds_alternative<Dropout>(operation);
}

// Throws Error if other layers share a stored tensor with this layer.
void expect_only(const std::vector<GraphBuilder::Layer>& layers, const GraphBuilder::Layer& layer) {
  for (const Stored& stored : layer.stored)
    for (const GraphBuilder::Layer& other : layers)
      for (const Stored& of_other : other.stored)
        if (stored.tensor != nullptr && of_other.tensor == stored.tensor && &other != &layer)
          fail("its last layer {} cannot be replaced for another number of classes: it shares {} with {}", layer.name,
               stored.tensor->name(), other.name);
}

// Gives the last layer with weights another unit count. The values no longer fit.
void replace_classifier(std::vector<GraphBuilder::Layer>& layers, const Logits& logits, std::size_t classes) {
  const std::size_t units = logits.classes;
  for (Value value = logits.value; Graph::has_node(value);) {
    GraphBuilder::Layer& layer = layers[value - Graph::output(0)];
    auto* operation = std::get_if<Operation>(&layer.operation);
    if (operation == nullptr) break;
    if (set_units<Dense>(*operation, units, classes) || set_units<Linear>(*operation, units, classes) ||
        set_units<Convolution>(*operation, units, classes)) {
      expect_only(layers, layer);
      layer.stored.clear();
      return;
    }
    if (!passes(*operation, units, classes)) break;
    value = layer.inputs[0];
  }
  fail("it has {} classes, but the data {}, and its last layer cannot be replaced: export it with {} classes", units,
       classes, classes);
}

// Returns a parameter's values in the graph's order.
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

// The parameter that a stored tensor becomes.
struct Form {
  Shape shape;
  bool transposed;

  bool operator==(const Form&) const = default;
};

// Adds the built layers to a network.
class Assembly {
 public:
  Assembly(const OnnxFile& file, const Reader& reader, const Task& task, ImportedNetwork& to)
      : file_(file), reader_(reader), task_(task), to_(to) {}

  // Returns the tensors that training changes.
  std::set<const onnx::TensorProto*> run() {
    const GraphBuilder& builder = reader_.builder();
    auto layers = builder.layers();
    const bool has_labels = task_.labels != LabelKind::tokens;
    const Value output = reader_.output();
    const auto used = builder.used_layers(output);
    if (task_.reads_tokens()) fit_vocabulary();
    if (has_labels) fit_classes(layers);
    const LayerNames names(builder, used, reader_.trained());
    for (const Value outside : {Graph::kImages, Graph::kLabels, Graph::kSampleKeys}) renumbered_[outside] = outside;
    choose_forms(layers, used);
    for (std::size_t i = 0; i < layers.size(); ++i)
      if (used[i]) renumbered_[Graph::output(i)] = add(names[i], std::move(layers[i]));
    add_equal_note();
    for (const auto& [name, of] : file_.separation().held)
      to_.notes.push_back(fmt::format("{} is taken for a second name of {}: nothing reads it", name, of));
    if (has_labels) to_.graph = with_loss(std::move(to_.graph), task_, renumbered_.at(output));
    return std::move(changed_);
  }

 private:
  void fit_classes(std::vector<GraphBuilder::Layer>& layers) {
    for (const FixedInput& fixed : file_.fixed_inputs())
      fail(
          "its input {} {}, which data files do not record for texts with labels: export it with tokens alone, for "
          "single texts of the full length",
          fixed.name, fixed.purpose);
    const Logits logits = expect_logits(reader_);
    if (logits.classes == task_.classes) return;
    replace_classifier(layers, logits, task_.classes);
    to_.notes.push_back(
        fmt::format("the last layer is replaced: it has {} classes, the data {}", logits.classes, task_.classes));
  }

  void fit_vocabulary() {
    const std::size_t own = vocabulary(reader_.builder()), data = task_.tokens.vocabulary;
    if (data > own)
      fail(
          "it has a vocabulary of {} tokens, and the data {}{}: import the text with its tokenizer, or export it with "
          "a "
          "vocabulary of {}",
          own, data, task_.tokens.prediction == Prediction::masked ? " with the mask token" : "", data);
    if (data < own) to_.notes.push_back(fmt::format("the data uses {} of the network's {} tokens", data, own));
    to_.graph = Graph(TokenShape{task_.tokens.length, own, task_.tokens.prediction});
  }

  static bool is_changed(const Stored& stored, const ParameterDeclaration& declared) {
    return stored.tensor != nullptr && (!stored.frozen || declared.role == Role::statistic);
  }

  static Form form(const Stored& stored, const ParameterDeclaration& declared) {
    return {declared.shape, stored.transposed && declared.shape.size() > 1};
  }

  // A layer with weights determines a tensor's form, because learned values can be reshaped.
  void choose_forms(const std::vector<GraphBuilder::Layer>& layers, const std::vector<bool>& used) {
    for (const bool learned : {false, true})
      for (std::size_t i = 0; i < layers.size(); ++i) {
        const auto* operation = std::get_if<Operation>(&layers[i].operation);
        if (!used[i] || operation == nullptr || std::holds_alternative<Learned>(*operation) != learned) continue;
        const auto declared = declarations(reader_.builder(), layers[i], *operation);
        for (std::size_t k = 0; k < layers[i].stored.size(); ++k)
          if (is_changed(layers[i].stored[k], declared.at(k)))
            forms_.try_emplace(layers[i].stored[k].tensor, form(layers[i].stored[k], declared[k]));
      }
  }

  static std::vector<ParameterDeclaration> declarations(const GraphBuilder& builder, const GraphBuilder::Layer& layer,
                                                        const Operation& operation) {
    Shapes inputs;
    for (const Value input : layer.inputs) inputs.push_back(builder.shape(input, 1));
    return parameters(operation, inputs);
  }

  Value add(const LayerNames::Layer& names, GraphBuilder::Layer layer) {
    if (std::holds_alternative<Erf>(layer.operation)) fail("node {}: Erf is supported only within GELU", names.layer);
    auto& operation = std::get<Operation>(layer.operation);
    if (auto* dropout = std::get_if<Dropout>(&operation)) dropout->number = dropouts_++;
    for (Value& input : layer.inputs) input = renumbered_.at(input);
    const std::optional<Shape> wanted = use_form_of_layer(layer, operation);
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
      if (!share(node, layer.stored[i], declared[i]))
        add_parameter(parameter_name(node, declared[i].name), layer.stored[i], declared[i]);
    const Value value = to_.graph.add(std::move(node));
    return wanted ? to_.graph.add(names.layer + ".reshaped", Reshape{*wanted}, {value}) : value;
  }

  // Gives learned values the form used by the layer that shares their tensor. Returns the shape that they must get
  // then.
  std::optional<Shape> use_form_of_layer(GraphBuilder::Layer& layer, Operation& operation) const {
    auto* learned = std::get_if<Learned>(&operation);
    if (learned == nullptr || layer.stored.empty() || !forms_.contains(layer.stored[0].tensor)) return std::nullopt;
    const Form& shared = forms_.at(layer.stored[0].tensor);
    const Shape own = learned->parameters({})[0].shape;
    if (shared.transposed || shared.shape == own || elements(shared.shape) != elements(own)) return std::nullopt;
    return std::exchange(learned->shape, shared.shape);
  }

  // Returns whether an earlier layer has the parameter.
  bool share(Node& node, const Stored& stored, const ParameterDeclaration& declared) {
    if (!is_changed(stored, declared)) return false;
    const auto [first, added] = parameters_.try_emplace(stored.tensor, parameter_name(node, declared.name));
    if (forms_.at(stored.tensor) != form(stored, declared))
      fail(
          "layer {}: the file stores its {} and {} together, but in another shape or transposed: give each its own, "
          "then export again",
          node.name, declared.name, first->second);
    const auto& aliases = file_.separation().aliases;
    if (const auto found = aliases.find(stored.tensor->name()); added && found != aliases.end())
      node.aliases[declared.name] = found->second;
    if (added) return false;
    node.names.erase(declared.name);
    node.shared[declared.name] = first->second;
    return true;
  }

  void add_equal_note() {
    std::vector<std::string> equal;
    for (const std::string& parameter : file_.separation().equal) equal.push_back(parameter);
    if (equal.empty()) return;
    to_.notes.push_back(
        equal.size() == 1
            ? fmt::format("{} is stored together with an equal one; it is trained on its own", equal[0])
            : fmt::format("{} and {} more are stored together with equal ones; each is trained on its own", equal[0],
                          equal.size() - 1));
  }

  Shapes input_shapes(const std::vector<Value>& inputs) const {
    Shapes shapes;
    for (const Value input : inputs) shapes.push_back(to_.graph.shape(input, 1));
    return shapes;
  }

  void add_parameter(const std::string& name, const Stored& stored, const ParameterDeclaration& declared) {
    if (declared.role == Role::metric) return;
    if (stored.tensor != nullptr) {
      if (is_changed(stored, declared)) changed_.insert(stored.tensor);
      if (seen_.insert(stored.tensor).second && !reader_.depends_on_values(*stored.tensor))
        to_.stored.push_back(stored.tensor->name());
      if (OnnxFile::stripped(*stored.tensor)) return;
    }
    to_.values[name] = parameter_values(stored, declared);
  }

  const OnnxFile& file_;
  const Reader& reader_;
  const Task& task_;
  ImportedNetwork& to_;
  std::uint32_t dropouts_ = 0;
  std::map<Value, Value> renumbered_;  // the builder's value: the graph's
  std::set<const onnx::TensorProto*> seen_, changed_;
  // For tensors that training changes: how they are stored in the graph, and the parameters' names.
  std::map<const onnx::TensorProto*, Form> forms_;
  std::map<const onnx::TensorProto*, std::string> parameters_;
};

std::string size_hint(const OnnxFile& file, const Task& task) {
  if (file.reads_tokens()) return "";
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
         file.reads_tokens() ? fmt::format(" (windows have {} tokens: see --length)", task.tokens.length)
                             : size_hint(file, task));
  ImportedNetwork network{empty_graph(task), {}, {}, reader.notes(), {}};
  network.pixels = reader.pixels();
  add_output_notes(file, network.notes);
  try {
    const auto changed = Assembly(file, reader, task, network).run();
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

namespace {

// Returns a task for texts with labels.
Task text_task(std::size_t length, std::size_t vocabulary, std::size_t classes) {
  Task task = token_task({length, vocabulary, Prediction::label});
  task.labels = LabelKind::one_class;
  task.classes = classes;
  return task;
}

// Returns the task that fits a network's output and attention; nothing if the network cannot read such windows.
std::optional<Task> task_for_length(const OnnxFile& file, std::size_t length) {
  const Task labelled = text_task(length, 1, 1);
  Reader reader(file, labelled);
  reader.run();
  if (!reader.problems().empty()) return std::nullopt;
  const Shape output = reader.builder().shape(reader.output(), 1);
  if (output.size() == 2 && output[0] == 1) return text_task(length, vocabulary(reader.builder()), output[1]);
  const bool masked = !attends_to_later_tokens(reader.builder()).empty();
  const Task task = token_task({length, 1, masked ? Prediction::masked : Prediction::next});
  Reader predictor(file, task);
  predictor.run();
  if (!predictor.problems().empty()) return std::nullopt;
  return token_task({length, vocabulary(predictor.builder()), task.tokens.prediction});
}

// Returns windows with the file's length, or else with the largest length up to 256 that the network can read.
Task exported_token_task(const OnnxFile& file) {
  constexpr std::size_t kMost = 256;
  const std::size_t fixed = file.token_input().length;
  for (std::size_t length = fixed > 0 ? fixed : kMost;; length /= 2) {
    if (const auto task = task_for_length(file, length)) return *task;
    if (fixed > 0 || length <= 2) return token_task({length, 1});
  }
}

}  // namespace

Task exported_task(const OnnxFile& file) {
  if (file.reads_tokens()) return exported_token_task(file);
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
