#include "src/train/initial_weights.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "kernels/base/error.h"
#include "models/graph/state_dict.h"
#include "src/checkpoint/restore.h"
#include "src/io/printable.h"
#include "src/train/weight_names.h"
#include "src/weights/weight_files.h"

namespace annulus {
namespace {

// The tensors of a file.
struct NamedTensors {
  std::string source;  // "run/checkpoint.h5: lenet after 938 steps"
  std::map<std::string, Shape> shapes;
  std::function<std::vector<float>(const std::string& name)> read;
  std::vector<std::string> damaged{};  // see StoredCheckpoint
  bool of_pytorch = false;             // matrices are as in PyTorch's state_dict
  std::string added{};                 // see WeightNames
};

NamedTensors open_weight_files(const std::filesystem::path& path, const Graph& graph) {
  const auto files = std::make_shared<WeightFiles>(path);
  std::vector<std::string> stored, wanted;
  for (const auto& [name, shape] : files->shapes()) stored.push_back(name);
  for (const StateTensor& tensor : state_dict(graph))
    if (!tensor.counts_steps) wanted.push_back(tensor.name);
  const WeightNames names = match_names(stored, wanted);
  NamedTensors tensors{path.string(), {}, [=](const std::string& name) { return files->read(names.stored.at(name)); }};
  tensors.of_pytorch = true;
  tensors.added = names.added;
  for (const auto& [name, in_file] : names.stored) tensors.shapes[name] = files->shapes().at(in_file);
  return tensors;
}

NamedTensors open_checkpoint(const std::filesystem::path& place) {
  const auto stored = std::make_shared<StoredCheckpoint>(find_checkpoint(place));
  const CheckpointFile& file = stored->file;
  expect_usable(file);
  NamedTensors tensors{fmt::format("{}: {}", file.path().string(), description(file.header())),
                       {},
                       [stored](const std::string& name) {
                         return stored->file.read(stored->file.averages() ? kAverage : kParameters, name);
                       },
                       stored->damaged};
  for (const std::string& name : file.names()) tensors.shapes[name] = file.shape(name);
  return tensors;
}

bool is_checkpoint(const std::filesystem::path& place) {
  return std::filesystem::is_directory(place) || is_hdf5(place);
}

// "a, b, c and 7 more".
std::string first_of(const std::vector<std::string>& names) {
  constexpr std::size_t kMost = 3;
  const std::string text =
      fmt::format("{}", fmt::join(names.begin(), names.begin() + std::min(names.size(), kMost), ", "));
  return names.size() > kMost ? fmt::format("{} and {} more", text, names.size() - kMost) : text;
}

// Hugging Face's GPT-2: attention masks, and the head, which is the embedding.
bool is_ignored(const std::string& name) {
  return name.ends_with(".num_batches_tracked") || name.starts_with("AuxLogits.") || name.ends_with(".attn.bias") ||
         name.ends_with(".attn.masked_bias") || name == "lm_head.weight";
}

// Whether a shape is one of a head's for another number of classes.
bool differs_in_classes(const Shape& shape, const StateTensor& tensor) {
  for (Shape expected : {tensor.shape, tensor.parameter_shape}) {
    if (shape.empty() || shape.size() != expected.size()) continue;
    expected[0] = shape[0];
    if (shape == expected) return true;
  }
  return false;
}

// How a file's tensors fit a network.
struct Comparison {
  std::vector<std::string> fitting, missing, unexpected, other_shapes;
  std::optional<std::size_t> other_classes;  // if the heads differ, the number of the file's
  bool has_no_head = false;                  // all else fits
};

// Whether the last layer has unshared weights, which may begin with random values.
bool has_own_head(const Graph& graph) {
  for (std::size_t node = graph.nodes().size(); node-- > head_of(graph);)
    if (!graph.nodes()[node].shared.empty()) return false;
  return true;
}

Comparison compare(const NamedTensors& tensors, const std::set<std::string>& others, const Graph& graph) {
  const Node& head = graph.nodes()[head_of(graph)];
  const auto of_head = [&](const std::string& name) {
    return std::ranges::any_of(graph.parameters(head),
                               [&](const auto& p) { return parameter_name(head, p.name) == name; });
  };
  Comparison found;
  const auto wanted = state_dict(graph);
  std::set<std::string> there;  // parameters, which may have several names
  for (const StateTensor& tensor : wanted)
    if (tensors.shapes.contains(tensor.name)) there.insert(tensor.parameter);
  std::map<std::string, Shape> rest = tensors.shapes;
  for (const StateTensor& tensor : wanted) {
    if (tensor.counts_steps) continue;
    const auto entry = rest.extract(tensor.name);
    if (entry.empty() && there.contains(tensor.parameter)) continue;
    if (entry.empty())
      found.missing.push_back(tensor.name);
    else if (entry.mapped() == tensor.shape ||
             (entry.mapped() == tensor.parameter_shape && !(tensors.of_pytorch && tensor.transposed)))
      found.fitting.push_back(tensor.name);
    else if (of_head(tensor.parameter) && differs_in_classes(entry.mapped(), tensor))
      found.other_classes = entry.mapped()[0];
    else
      found.other_shapes.push_back(
          fmt::format("{} {} instead of {}", tensor.name, to_string(entry.mapped()), to_string(tensor.shape)));
  }
  for (const auto& [name, shape] : rest)
    if (!is_ignored(name) && !others.contains(name)) found.unexpected.push_back(name);
  const bool fits = !found.fitting.empty() && found.unexpected.empty() && found.other_shapes.empty();
  if (fits && !found.missing.empty() && !found.other_classes && has_own_head(graph) &&
      std::ranges::all_of(found.missing, of_head) && std::ranges::none_of(found.fitting, of_head)) {
    found.has_no_head = true;
    found.missing.clear();
  }
  return found;
}

void expect_fit(const NamedTensors& tensors, const Comparison& found) {
  std::vector<std::string> texts;
  for (const auto& [what, names] : {std::pair("missing ", &found.missing),
                                    {"unexpected ", &found.unexpected},
                                    {"other shapes: ", &found.other_shapes}})
    if (!names->empty()) texts.push_back(what + first_of(*names));
  if (!texts.empty())
    fail("{}: does not fit this network: {}; give --model the network that it belongs to", tensors.source,
         printable(fmt::format("{}", fmt::join(texts, "; "))));
}

std::vector<std::string> load(const NamedTensors& tensors, const std::set<std::string>& others, Model& model) {
  const Comparison found = compare(tensors, others, model.graph());
  expect_fit(tensors, found);
  const Parameters& parameters = model.parameters();
  for (const StateTensor& tensor : state_dict(model.graph())) {
    const auto fits = [&](const std::string& name) {
      return std::ranges::find(found.fitting, name) != found.fitting.end();
    };
    if (!fits(tensor.name)) continue;
    const auto p = std::ranges::find(parameters.all(), tensor.parameter, &Parameter::name);
    if (p == parameters.all().end()) continue;  // another stage of a pipeline has it
    std::vector<float> values = tensors.read(tensor.name);
    if (tensor.name != tensor.parameter && fits(tensor.parameter) && tensors.read(tensor.parameter) != values)
      fail("{}: {} is not equal to {}, but they are one parameter of this network", tensors.source, tensor.name,
           tensor.parameter);
    if (tensors.of_pytorch && tensor.transposed) values = transposed(values, tensor.shape);
    model.device().write(values, p->spec, parameters.weight(*p));
  }
  std::vector<std::string> lines = tensors.damaged;
  lines.push_back("initial weights from " + tensors.source);
  if (!tensors.added.empty())
    lines.push_back(fmt::format("  whose names have '{}' in addition to the network's", printable(tensors.added)));
  if (found.has_no_head)
    lines.push_back(fmt::format("  but not of {}, which the file does not have: it begins with random weights",
                                model.graph().nodes()[head_of(model.graph())].name));
  if (found.other_classes)
    lines.push_back(fmt::format("  but not of {}, which has {} classes there: it begins with random weights",
                                model.graph().nodes()[head_of(model.graph())].name, *found.other_classes));
  return lines;
}

}  // namespace

std::vector<std::string> load_initial_weights(const World& world, const std::filesystem::path& file,
                                              const std::set<std::string>& others, Model& model) {
  std::vector<std::string> lines;
  if (world.root())
    lines = load(is_checkpoint(file) ? open_checkpoint(file) : open_weight_files(file, model.graph()), others, model);
  broadcast_weights(world, model);
  return lines;
}

void set_initial_weights(const World& world, const std::map<std::string, std::vector<float>>& values, Model& model) {
  const Parameters& parameters = model.parameters();
  for (const Parameter& p : parameters.all())
    if (const auto found = values.find(p.name); found != values.end())
      model.device().write(found->second, p.spec, parameters.weight(p));
  broadcast_weights(world, model);
}

}  // namespace annulus
