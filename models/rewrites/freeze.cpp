#include "models/rewrites/freeze.h"

#include <fmt/ranges.h>
#include <fnmatch.h>

#include <algorithm>
#include <ranges>

#include "kernels/base/error.h"
#include "models/graph/state_dict.h"

namespace annulus {
namespace {

// Returns the first parts of all parameters' names: "conv1", "bn1", "layer1", ...
std::vector<std::string> groups(const Graph& graph) {
  std::vector<std::string> all;
  for (const StateTensor& tensor : state_dict(graph)) {
    const std::string group = tensor.name.substr(0, tensor.name.find('.'));
    if (all.empty() || all.back() != group) all.push_back(group);
  }
  return all;
}

bool matches_any(const std::vector<std::string>& patterns, const std::string& parameter) {
  return std::ranges::any_of(patterns, [&](const std::string& pattern) { return matches(pattern, parameter); });
}

bool trains_anything(const Graph& graph) {
  return std::ranges::any_of(graph.nodes(), [&](const Node& node) {
    return std::ranges::any_of(graph.parameters(node), [](const auto& p) { return trained(p.role); });
  });
}

// `graph`: the nodes before it.
void freeze_statistics(Node& node, const Graph& graph) {
  auto* norm = std::get_if<BatchNorm>(&node.operation);
  if (norm == nullptr) return;
  const auto declared = graph.all_parameters(node);
  const auto is_frozen = [&](const char* name) {
    return std::ranges::find(declared, name, &ParameterDeclaration::name)->role == Role::frozen;
  };
  norm->frozen_statistics = is_frozen("running_mean");
  if (norm->frozen_statistics) norm->synchronized = false;
  if (norm->frozen_statistics != is_frozen("running_var"))
    fail("--freeze: only one of running_mean and running_var of {} is frozen: freeze both or none", node.name);
}

}  // namespace

bool matches(const std::string& pattern, const std::string& parameter) {
  for (std::size_t end = parameter.size(); end != std::string::npos && end > 0; end = parameter.rfind('.', end - 1))
    if (::fnmatch(pattern.c_str(), parameter.substr(0, end).c_str(), FNM_NOESCAPE) == 0) return true;
  return false;
}

void expect_matches(const Graph& graph, const std::vector<std::string>& patterns, const std::string& option) {
  for (const std::string& pattern : patterns)
    if (std::ranges::none_of(state_dict(graph),
                             [&](const StateTensor& tensor) { return matches(pattern, tensor.parameter); }))
      fail("{}: no parameter matches {}; the network's are those of {}", option, pattern,
           fmt::join(groups(graph), ", "));
}

Graph freeze(const Graph& graph, const std::vector<std::string>& patterns) {
  expect_matches(graph, patterns, "--freeze");
  Graph result = graph.without_nodes();
  for (Node node : graph.nodes()) {
    for (const ParameterDeclaration& p : graph.parameters(node))
      if (p.role != Role::metric && matches_any(patterns, parameter_name(node, p.name))) node.frozen.push_back(p.name);
    freeze_statistics(node, result);
    result.add(std::move(node));
  }
  if (!trains_anything(result)) fail("--freeze: all parameters are frozen, so there is nothing to train");
  return result;
}

std::vector<std::string> frozen_names(const Graph& graph) {
  std::vector<std::string> names;
  for (const Node& node : graph.nodes() | std::views::reverse)
    for (const auto& parameter : graph.all_parameters(node)) {
      const std::string name = parameter_name(node, parameter.name);
      if (parameter.role == Role::frozen && std::ranges::find(names, name) == names.end()) names.push_back(name);
    }
  return names;
}

}  // namespace annulus
