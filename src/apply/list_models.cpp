#include "src/apply/list_models.h"

#include <fmt/format.h>

#include "kernels/base/error.h"
#include "models/graph/cost.h"
#include "models/network/model.h"
#include "models/rewrites/fusion.h"
#include "models/zoo/zoo.h"
#include "src/io/bytes.h"
#include "src/io/printable.h"
#include "src/io/shortened.h"
#include "src/metrics/results.h"
#include "src/onnx/causality.h"
#include "src/onnx/network_file.h"
#include "src/onnx/read.h"

namespace annulus {
namespace {

Task task_of(const std::string& model, const ModelsOptions& options) {
  const auto& image = options.image;
  Task task = default_task(model);
  if (task.reads_tokens()) {
    if (options.length > 0) task.tokens.length = options.length;
    return task;
  }
  return neutral_task(
      image.empty() ? task.image : ImageShape{image[0], image[1], image[2] > 0 ? image[2] : task.image.channels},
      options.classes > 0 ? options.classes : task.classes);
}

std::string image_text(const ImageShape& image) {
  return fmt::format("{}x{}x{}", image.height, image.width, image.channels);
}

// "224x224x3", "1024 tokens".
std::string input_text(const Task& task) {
  return task.reads_tokens() ? fmt::format("{} tokens", task.tokens.length) : image_text(task.image);
}

// Returns how many outputs a network has: classes, or the vocabulary.
std::size_t classes(const Task& task) {
  return task.labels == LabelKind::tokens ? task.tokens.vocabulary : task.classes;
}

// "images of 224x224x3, 1000 classes".
std::string task_text(const Task& task) {
  if (task.labels != LabelKind::tokens)
    return fmt::format("{} of {}, {} classes", task.reads_tokens() ? "texts" : "images", input_text(task),
                       task.classes);
  return fmt::format("windows of {}, a vocabulary of {}{}", input_text(task), task.tokens.vocabulary,
                     task.tokens.prediction == Prediction::masked ? ", with --loss masked" : "");
}

std::string flops_text(std::uint64_t flops) {
  if (flops == 0) return "";
  const auto count = static_cast<double>(flops);
  return flops < 1'000'000'000 ? fmt::format("{:.2f} M", 1e-6 * count) : fmt::format("{:.2f} G", 1e-9 * count);
}

std::string cost_text(const Cost& cost) {
  return fmt::format("{:>12} {:>11} {:>11} {:>11}", cost.parameters, flops_text(cost.forward_flops),
                     flops_text(cost.training_flops), format_bytes(cost.activation_bytes));
}

constexpr std::string_view kCostHeader = "  parameters     forward    training activations";

nlohmann::json to_json(const Cost& cost) {
  return {{"parameters", cost.parameters},
          {"gradient_bytes", cost.gradient_bytes()},
          {"forward_flops", cost.forward_flops},
          {"training_flops", cost.training_flops},
          {"activation_bytes", cost.activation_bytes}};
}

nlohmann::json to_json(const std::string& model, const Task& task, const Cost& cost) {
  nlohmann::json row = to_json(cost);
  row["model"] = model;
  row[task.reads_tokens() ? "input" : "image"] = input_text(task);
  row["classes"] = classes(task);
  return row;
}

// Returns the memory for training with a single image on a CPU, without parameters.
std::size_t training_bytes(const Graph& graph) {
  return activation_arena_bytes(*make_device("cpu"), graph, Mode::training, 1);
}

// Returns the layers that a node reads from.
std::vector<std::string> input_names(const Graph& graph, const Node& node) {
  std::vector<std::string> names;
  for (const Value value : node.inputs)
    if (value >= Graph::output(0)) names.push_back(graph.nodes()[value - Graph::output(0)].name);
  return names;
}

// If a model does not accept such images, the row shows the error.
nlohmann::json print_zoo(const ModelsOptions& options) {
  fmt::print("{:<18} {:>11} {:>7} {} {:>11} {:>11}\n", "model", "input", "classes", kCostHeader, "memory", "gradients");
  nlohmann::json rows;
  for (const ZooEntry& entry : zoo()) {
    const Task task = task_of(entry.name, options);
    fmt::print("{:<18} {:>11} {:>7} ", entry.name, input_text(task), classes(task));
    try {
      const Graph graph = make_model(entry.name, task);
      const Cost cost = total_cost(fuse(graph));
      const std::size_t memory = training_bytes(graph);
      fmt::print("{} {:>11} {:>11}\n", cost_text(cost), format_bytes(memory), format_bytes(cost.gradient_bytes()));
      rows.push_back(to_json(entry.name, task, cost));
      rows.back()["memory_bytes"] = memory;
    } catch (const std::exception& error) {  // also oneDNN's, and too little memory
      fmt::print("  {}\n", error.what());
      rows.push_back({{"model", entry.name}, {"error", error.what()}});
    }
  }
  return rows;
}

nlohmann::json print_layers(const ModelsOptions& options) {
  const std::string& model = options.model;
  const Task task = task_of(model, options);
  const Graph written = make_network(model, task);
  const Graph graph = fuse(written);
  const std::size_t memory = training_bytes(written);
  const auto shapes = graph.shapes(1);
  const auto costs = node_costs(graph);
  fmt::print("{}: {}\n{:<36} {:<22} {:>12} {}\n", printable(model),
             is_network_file(model) ? "an ONNX file" : zoo_entry(model).description, "layer", "operation", "output",
             kCostHeader);
  nlohmann::json layers;
  for (std::size_t i = 0; i < costs.size(); ++i) {
    const Node& node = graph.nodes()[i];
    const Shape& shape = shapes[Graph::output(i)];
    const bool single = shape == graph.shape(Graph::output(i), 2);  // it does not depend on the images
    const std::string output = to_string(single ? shape : Shape(shape.begin() + 1, shape.end()));
    fmt::print("{:<36} {:<22} {:>12} {}\n", node.name, name(node.operation), output, cost_text(costs[i]));
    layers.push_back(to_json(costs[i]));
    layers.back().update({{"layer", node.name}, {"operation", name(node.operation)}, {"output", output}});
    layers.back()["inputs"] = input_names(graph, node);
  }
  const Cost total = total_cost(graph);
  fmt::print("{:<36} {:<22} {:>12} {}\nmemory {}\n", "in all", "", input_text(task), cost_text(total),
             format_bytes(memory));
  nlohmann::json row = to_json(model, task, total);
  row["memory_bytes"] = memory;
  row["layers"] = layers;
  return row;
}

void write_list(const ModelsOptions& options, const nlohmann::json& found) {
  if (!options.json.empty())
    write_json(options.json, FileKind::model_list, {{"version", ANNULUS_VERSION}, {"models", found}});
}

}  // namespace

void list_models(const ModelsOptions& options) {
  const nlohmann::json found = options.model.empty() ? print_zoo(options) : print_layers(options);
  fmt::print(
      "forward and training: floating-point operations per image, or window of tokens, a multiply-add counts as 2; "
      "activations: the layers' outputs in float32; memory: peak memory of activations and their gradients when "
      "training "
      "with one of them on a CPU, without parameters and the masks and indices of ReLUs and max pools; classes: or the "
      "vocabulary\n");
  write_list(options, found);
}

bool check_network(const ModelsOptions& options) {
  OnnxFile file = OnnxFile::read(options.check);
  file.set_pixels(parse_pixels(options.pixels));
  const std::string path = printable(options.check.string());
  const Task task = exported_task(file);
  const auto found = problems(file, task);
  nlohmann::json row{{"model", path}, {"problems", found}};
  for (const std::string& problem : found) fmt::print("{}\n", shortened(printable(problem)));
  if (found.empty()) {
    const ImportedNetwork network = read_network(file, task);
    expect_causal(file, network);
    const Cost cost = total_cost(network.graph);
    fmt::print("{}\n", printable(network.trained.text()));
    for (const std::string& note : network.notes) fmt::print("{}\n", printable(note));
    fmt::print("{}: it can be trained: {} layers, {} parameters, {}\n", path, network.graph.nodes().size(),
               cost.parameters, task_text(task));
    row.update(to_json(path, task, cost));
    row["notes"] = network.notes;
    row["trained_tensors"] = network.trained.trained;
    row["not_trained"] = network.trained.not_trained;
    row["unused"] = network.trained.unused;
  } else {
    fmt::print("operators that are read: {}\n{}: {} node{} cannot be trained\n", operator_names(), path, found.size(),
               found.size() == 1 ? "" : "s");
    row["operators"] = operator_names();
  }
  write_list(options, row);
  return found.empty();
}

}  // namespace annulus
