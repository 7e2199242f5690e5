#include "src/onnx/separate_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <optional>
#include <set>
#include <utility>

#include "src/onnx/digits.h"
#include "src/onnx/file.h"
#include "src/onnx/marks.h"
#include "src/onnx/node_scope.h"
#include "src/onnx/restore_tensors.h"
#include "src/onnx/tensor.h"

namespace annulus {
namespace {

std::string leaf_of(const std::string& parameter) {
  return parameter.substr(parameter.rfind('.') + 1);
}

std::string module_part(const std::string& parameter) {
  const std::size_t at = parameter.rfind('.');
  return at == std::string::npos ? "" : parameter.substr(0, at);
}

std::string joined(const std::string& module, const std::string& leaf) {
  return module.empty() ? leaf : module + "." + leaf;
}

bool is_within(const std::string& parameter, const std::string& module) {
  return module.empty() || parameter.starts_with(module + ".");
}

std::vector<std::string> parts_of(const std::string& path) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
    end = path.find('.', begin);
    parts.push_back(path.substr(begin, end - begin));
  }
  return parts;
}

// Whether two modules differ only in their numbers in lists.
bool are_siblings(const std::string& a, const std::string& b) {
  const auto first = parts_of(a), second = parts_of(b);
  return std::ranges::equal(first, second,
                            [](const auto& x, const auto& y) { return x == y || (is_number(x) && is_number(y)); });
}

// Returns the module without the call's number: "norm" for "norm_1".
std::string without_call(const std::string& module) {
  const std::size_t at = module.rfind('_');
  return at != std::string::npos && is_number(std::string_view(module).substr(at + 1)) ? module.substr(0, at) : module;
}

// Whether an exporter that folds transposes made up a name: "onnx::MatMul_12".
bool is_made_up(const std::string& name) {
  return name.starts_with("onnx::") || name.starts_with('/') || is_number(name);
}

bool all_equal(const onnx::TensorProto& tensor) {
  const std::string& raw = tensor.raw_data();
  const std::size_t count = elements(checked_shape(tensor));
  if (count == 0) return false;
  if (!raw.empty())
    return std::memcmp(raw.data(), raw.data() + raw.size() / count, raw.size() - raw.size() / count) == 0;
  const HostTensor host = read_tensor(tensor);
  return std::ranges::all_of(host.reals, [&](double value) { return value == host.reals[0]; });
}

// Whether a tensor has values with which modules begin: all equal; if `strict`, a single value must be 0 or 1.
bool is_initial(const onnx::TensorProto& tensor, bool strict) {
  if (!strict || elements(checked_shape(tensor)) > 1) return all_equal(tensor);
  const HostTensor host = read_tensor(tensor);
  return host.at(0) == 0 || host.at(0) == 1;
}

bool is_standard(const std::string& leaf) {
  return leaf == "weight" || leaf == "bias" || leaf == "running_mean" || leaf == "running_var";
}

// Returns the name within PyTorch's module for a node's input; empty if the operator does not belong to a module.
std::string leaf_at(const std::string& op, int input) {
  static constexpr std::array<const char*, 5> kNames{"", "weight", "bias", "running_mean", "running_var"};
  static constexpr std::array<std::string_view, 7> kLayers{
      "Conv", "ConvTranspose", "Gemm", "GroupNormalization", "InstanceNormalization", "LayerNormalization", "PRelu"};
  const int names = op == "BatchNormalization" ? 5 : std::ranges::find(kLayers, op) != kLayers.end() ? 3 : 0;
  return input < names ? kNames.at(static_cast<std::size_t>(input)) : "";
}

// A node's input that is a stored tensor.
struct Read {
  onnx::NodeProto* node;
  int input;
  std::string copied_as{};  // an Identity's output that copies the tensor, which the node reads

  const std::string& tensor() const { return node->input(input); }
  // Whether the node's operator gives the parameter another name within a module than `parameter` has.
  bool differs_from(const std::string& parameter) const {
    const std::string leaf = leaf_at(node->op_type(), input);
    return !leaf.empty() && is_standard(leaf_of(parameter)) && leaf_of(parameter) != leaf;
  }
};

class Separator {
 public:
  explicit Separator(onnx::GraphProto& graph)
      : graph_(graph), marks_(marks(graph)), sources_(sources(graph)), placeholders_(placeholders(graph)) {
    for (const onnx::TensorProto& tensor : graph.initializer()) {
      taken_.insert(tensor.name());
      if (is_real(tensor)) tensors_[tensor.name()] = &tensor;
    }
    for (const onnx::NodeProto& node : graph.node()) taken_.insert(node.output().begin(), node.output().end());
    for (const auto& [name, tensor] : tensors_) origins_[name] = origin_of(name);
    for (const onnx::NodeProto& node : graph.node()) modules_.insert(module_of(node));
  }

  Separation run() {
    const std::map<std::string, std::string> copies = remove_copies();
    std::map<std::string, std::vector<Read>> reads;
    for (onnx::NodeProto& node : *graph_.mutable_node())
      for (int input = 0; input < node.input_size(); ++input) {
        const auto copy = copies.find(node.input(input));
        Read read{&node, input, copy == copies.end() ? "" : copy->first};
        if (copy != copies.end()) node.set_input(input, copy->second);
        if (tensors_.contains(node.input(input))) reads[node.input(input)].push_back(std::move(read));
      }
    writes_copies_ = !copies.empty() || stores_equal_tensors();
    for (const auto& [name, of_name] : reads)
      if (of_name.size() > 1 && can_be_parameter(of_name)) separate(of_name);
    if (is_optimized(graph_)) return std::move(found_);
    for (const auto& [name, of_name] : reads)
      if (of_name.size() == 1 && can_be_parameter(of_name)) name_called(of_name[0]);
    name_held();
    return std::move(found_);
  }

 private:
  // Removes each Identity of a stored tensor. PyTorch's older exporter makes them for tensors that equal another
  // tensor. Returns the stored tensors by the outputs' names.
  std::map<std::string, std::string> remove_copies() {
    std::map<std::string, std::string> copies;
    std::set<std::string> outputs;
    for (const onnx::ValueInfoProto& output : graph_.output()) outputs.insert(output.name());
    int kept = 0;
    for (int i = 0; i < graph_.node_size(); ++i) {
      const onnx::NodeProto& node = graph_.node(i);
      const std::string from = node.input_size() != 1 || node.output_size() != 1 ? ""
                               : copies.contains(node.input(0))                  ? copies.at(node.input(0))
                                                                                 : node.input(0);
      if (node.op_type() == "Identity" && tensors_.contains(from) && !outputs.contains(node.output(0)))
        copies[node.output(0)] = from;
      else
        graph_.mutable_node()->SwapElements(kept++, i);
    }
    graph_.mutable_node()->DeleteSubrange(kept, graph_.node_size() - kept);
    for (const auto& [copy, from] : copies) taken_.erase(copy);
    return copies;
  }

  // Whether two stored tensors are initial values that are equal: the exporter does not store equal ones together.
  bool stores_equal_tensors() const {
    std::set<std::pair<Shape, double>> seen;
    for (const auto& [name, tensor] : tensors_) {
      const Shape shape = checked_shape(*tensor);
      if (shape.size() != 1 || shape[0] < 2 || OnnxFile::stripped(*tensor) || !all_equal(*tensor)) continue;
      if (!seen.emplace(shape, read_tensor(*tensor).at(0)).second) return true;
    }
    return false;
  }

  // The parameter that a tensor is, or is computed from; empty if it is neither.
  std::string origin_of(const std::string& tensor) const {
    if (marks_.empty() || marks_.contains(tensor)) return tensor;
    const auto from = sources_.find(tensor);
    if (from == sources_.end()) return "";
    std::vector<std::string> parameters;
    std::ranges::copy_if(from->second, std::back_inserter(parameters), [&](const std::string& source) {
      const auto mark = marks_.find(source);
      return mark != marks_.end() && mark->second.kind == "PARAMETER";
    });
    return parameters.size() == 1 ? parameters[0] : "";
  }

  bool can_be_parameter(const std::vector<Read>& reads) const {
    const auto mark = marks_.find(reads[0].tensor());
    if (origins_.at(reads[0].tensor()).empty()) return false;
    if (mark == marks_.end() || mark->second.kind == "PARAMETER") return true;
    return mark->second.kind == "BUFFER" &&
           std::ranges::all_of(reads, [](const Read& read) { return read.node->op_type() == "BatchNormalization"; });
  }

  void separate(const std::vector<Read>& reads) {
    const std::string tensor = reads[0].tensor(), own = origins_.at(tensor);
    home_ = is_made_up(own) ? called_module(*reads[0].node) : module_part(own);
    calls_.clear();
    names_.clear();
    std::vector<std::string> names;
    for (const Read& read : reads) names_.insert(names.emplace_back(parameter_at(read, own)));
    std::map<std::string, std::string> stored;  // by parameter
    stored[names_.contains(own) ? own : names[0]] = tensor;
    for (std::size_t i = 0; i < reads.size(); ++i) {
      std::string& place = stored[names[i]];
      if (place.empty()) place = copy(tensor, own, names[i]);
      reads[i].node->set_input(reads[i].input, place);
    }
  }

  std::string parameter_at(const Read& read, const std::string& own) {
    const onnx::TensorProto& tensor = *tensors_.at(read.tensor());
    if (OnnxFile::separated(tensor)) return tied(read, own);
    if (!read.copied_as.empty() && !is_made_up(read.copied_as)) return read.copied_as;
    if (OnnxFile::stripped(tensor)) return names_.empty() ? own : another(read, own);
    if (read.copied_as.empty() && writes_copies_ && placeholders_.empty()) return tied(read, own);
    if (const auto traced = by_trace(read, own)) return *traced == own ? tied(read, own) : *traced;
    return by_module(read, own, tensor);
  }

  std::vector<std::string> traced_parameters(const TracedOperation& traced) const {
    std::vector<std::string> all;
    for (const std::string& value : traced.values)
      if (const auto found = placeholders_.find(value); found != placeholders_.end()) all.push_back(found->second);
    return all;
  }

  // Returns a layer's parameter by its place.
  std::string in_layer(const Read& read, const TracedOperation& operation,
                       const std::vector<std::string>& traced) const {
    const auto& inputs = read.node->input();
    const auto is_stored = [&](const std::string& input) { return origins_.contains(input); };
    const bool in_order = !operation.target.starts_with("aten.addmm");
    if (in_order && std::ranges::count_if(inputs, is_stored) == static_cast<std::ptrdiff_t>(traced.size()))
      return traced[static_cast<std::size_t>(std::count_if(inputs.begin(), inputs.begin() + read.input, is_stored))];
    return joined(module_of(*read.node), leaf_at(read.node->op_type(), read.input));
  }

  // Returns the traced parameter with this name, or a linear layer's. Otherwise, the candidates are parameters that no
  // other tensor is: the only candidate, else the candidate with the same last part, else that at the same place.
  std::optional<std::string> by_trace(const Read& read, const std::string& own) const {
    const TracedOperation operation = traced_operation(*read.node);
    std::vector<std::string> traced = traced_parameters(operation);
    if (traced.empty()) return std::nullopt;
    const bool differs = read.differs_from(own);
    if (!differs && std::ranges::find(traced, own) != traced.end()) return own;
    if (operation.target == "aten.linear.default" && traced.size() == 2)
      return traced[read.input == 2 || read.node->op_type() == "Add" ? 1 : 0];
    if (differs) return in_layer(read, operation, traced);
    std::vector<int> unknown;
    for (int input = 0; input < read.node->input_size(); ++input) {
      const auto origin = origins_.find(read.node->input(input));
      if (origin != origins_.end() && std::ranges::find(traced, origin->second) == traced.end())
        unknown.push_back(input);
    }
    std::erase_if(traced, [&](const std::string& name) {
      return std::ranges::any_of(origins_, [&](const auto& origin) { return origin.second == name; });
    });
    if (traced.size() == 1) return traced[0];
    const auto same_leaf = [&](const std::string& name) { return leaf_of(name) == leaf_of(own); };
    if (std::ranges::count_if(traced, same_leaf) == 1) return *std::ranges::find_if(traced, same_leaf);
    if (traced.size() != unknown.size()) return std::nullopt;
    return traced[static_cast<std::size_t>(std::ranges::find(unknown, read.input) - unknown.begin())];
  }

  bool is_home(const std::string& module) const { return module == home_ || is_within(home_, module); }

  // Returns a node's module, without the call's number: "norm" for "norm_1".
  std::string called_module(const onnx::NodeProto& node) const {
    const std::string module = module_of(node), called = without_call(module);
    const bool stored = std::ranges::any_of(
        tensors_, [&](const auto& other) { return !module.empty() && is_within(other.first, module); });
    return !stored && node.name().starts_with('/') && modules_.contains(called) ? called : module;
  }

  std::string by_module(const Read& read, const std::string& own, const onnx::TensorProto& tensor) {
    const std::string module = called_module(*read.node), leaf = leaf_of(own);
    const bool known = !module.empty() || read.node->name().starts_with('/') || !exported_scopes(*read.node).empty();
    if (!known) return is_initial(tensor, true) && !names_.empty() ? another(read, own) : own;
    if (read.differs_from(own))
      return joined(is_home(module) ? home_ : module, leaf_at(read.node->op_type(), read.input));
    if (is_home(module)) {
      const int number = calls_[module_of(*read.node)]++;
      const bool apart = number > 0 && !is_standard(leaf) && is_initial(tensor, true);
      return apart ? fmt::format("{}_{}", own, number + 1) : own;
    }
    const bool copied = are_siblings(home_, module) && std::ranges::none_of(tensors_, [&](const auto& other) {
                          return is_within(other.first, module);
                        });
    return copied || is_initial(tensor, false) ? joined(module, is_made_up(own) ? "weight" : leaf) : tied(read, own);
  }

  // A parameter that no other node reads.
  std::string another(const Read& read, const std::string& own) const {
    const std::string module = called_module(*read.node), name = is_home(module) ? own : joined(module, leaf_of(own));
    std::string found = name;
    for (int number = 2; found == own || names_.contains(found); ++number) found = fmt::format("{}_{}", name, number);
    return found;
  }

  // Returns another module's parameter: it has a name there, too.
  std::string tied(const Read& read, const std::string& own) {
    const std::string module = called_module(*read.node),
                      alias = joined(module, is_made_up(own) ? "weight" : leaf_of(own));
    if (module.empty() || is_home(module)) return own;
    const bool exists = placeholders_.empty() || std::ranges::any_of(placeholders_, [&](const auto& placeholder) {
                          return placeholder.second == alias;
                        });
    const bool another = std::ranges::any_of(origins_, [&](const auto& origin) { return origin.second == alias; });
    auto& all = found_.aliases[read.tensor()];
    if (exists && !another && std::ranges::find(all, alias) == all.end()) all.push_back(alias);
    return own;
  }

  // Names the parameter of a module that has two names, and is called by the other one.
  void name_called(const Read& read) {
    if (placeholders_.empty()) return;
    const std::string own = origins_.at(read.tensor()), alias = joined(called_module(*read.node), leaf_of(own));
    if (alias == own || read.differs_from(own)) return;
    const auto mark = marks_.find(alias);
    const bool stored = std::ranges::any_of(origins_, [&](const auto& origin) { return origin.second == alias; });
    if (mark == marks_.end() || mark->second.kind != "PARAMETER" || stored) return;
    found_.aliases[read.tensor()].push_back(alias);
    found_.held[alias] = own;
  }

  // Names parameters that a module also holds itself, such as the bias of a head's last layer in Hugging Face's masked
  // language models: torch.export lists both names, and stores one. A parameter that nothing reads is the second name
  // of the parameter with the same last part in a module directly within its own: of the only one, or of the one from
  // which the output is computed.
  void name_held() {
    std::set<std::string> known;
    for (const auto& [tensor, origin] : origins_) known.insert(origin);
    for (const auto& [tensor, names] : found_.aliases) known.insert(names.begin(), names.end());
    for (const auto& [name, mark] : marks_) {
      if (mark.kind != "PARAMETER" || known.contains(name)) continue;
      const std::string tensor = held_tensor(name);
      if (tensor.empty()) continue;
      found_.aliases[tensor].push_back(name);
      found_.held[name] = origins_.at(tensor);
    }
  }

  // Returns the tensor that a module holds under this name; empty if that is not clear.
  std::string held_tensor(const std::string& name) const {
    std::vector<std::string> within;
    for (const auto& [tensor, origin] : origins_) {
      const std::string module = module_part(origin);
      if (leaf_of(origin) == leaf_of(name) && !module.empty() && module != module_part(name) &&
          module_part(module) == module_part(name) && marks_.contains(origin) && marks_.at(origin).kind == "PARAMETER")
        within.push_back(tensor);
    }
    if (within.size() > 1) std::erase_if(within, [&](const std::string& tensor) { return !computes_output(tensor); });
    return within.size() == 1 ? within[0] : "";
  }

  // Whether the node that computes the first output reads the tensor.
  bool computes_output(const std::string& tensor) const {
    return graph_.output_size() > 0 && std::ranges::any_of(graph_.node(), [&](const onnx::NodeProto& node) {
             const auto reads = [](const auto& names, const std::string& name) {
               return std::ranges::find(names, name) != names.end();
             };
             return reads(node.output(), graph_.output(0).name()) && reads(node.input(), tensor);
           });
  }

  // Stores a tensor again, for another parameter.
  std::string copy(const std::string& tensor, const std::string& own, const std::string& parameter) {
    found_.equal.push_back(parameter);
    const std::string wanted = tensor == own ? parameter : tensor;
    std::string name = wanted;
    for (int number = 2; !taken_.insert(name).second; ++number) name = fmt::format("{}_{}", wanted, number);
    onnx::TensorProto& stored = *graph_.add_initializer();
    stored = *tensors_.at(tensor);
    stored.set_name(name);
    copy_mark(graph_, tensor, name, own, parameter);
    return name;
  }

  onnx::GraphProto& graph_;
  const std::map<std::string, TensorMark> marks_;
  const std::map<std::string, std::vector<std::string>> sources_;
  const std::map<std::string, std::string> placeholders_;
  std::map<std::string, const onnx::TensorProto*> tensors_;  // real numbers only
  std::map<std::string, std::string> origins_;               // by tensor
  std::set<std::string> taken_, modules_;                    // names of values, and of nodes' modules
  bool writes_copies_ = false;                               // what nodes read directly is not just equal
  // For the tensor that is being separated: the parameter's module, calls that read it, and parameters so far.
  std::string home_;
  std::map<std::string, int> calls_;
  std::set<std::string> names_;
  Separation found_;
};

}  // namespace

Separation separate_tensors(onnx::GraphProto& graph) {
  restore_tensors(graph);
  return Separator(graph).run();
}

}  // namespace annulus
