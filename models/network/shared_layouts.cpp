#include "models/network/shared_layouts.h"

#include <algorithm>

#include "kernels/base/error.h"

namespace annulus {

SharedLayouts::SharedLayouts(const Graph& graph) : graph_(graph) {
  for (const Node& node : graph.nodes())
    for (const auto& [parameter, name] : node.shared) shared_.insert(name);
}

std::vector<TensorSpec> SharedLayouts::given(const Node& node) const {
  std::vector<TensorSpec> layouts;
  for (const ParameterDeclaration& p : graph_.all_parameters(node)) {
    const auto chosen = chosen_.find(parameter_name(node, p.name));
    layouts.push_back(chosen != chosen_.end() ? chosen->second : TensorSpec{});
  }
  if (std::ranges::none_of(layouts, [](const TensorSpec& spec) { return bool(spec.layout); })) layouts.clear();
  return layouts;
}

bool SharedLayouts::keep(const Node& node, const std::vector<TensorSpec>& planned) {
  const auto declared = graph_.all_parameters(node);
  for (std::size_t i = 0; i < declared.size(); ++i) {
    const std::string name = parameter_name(node, declared[i].name);
    if (!shared_.contains(name)) continue;
    TensorSpec& chosen = chosen_.try_emplace(name, planned[i]).first->second;
    if (chosen.layout->name() == planned[i].layout->name()) continue;
    if (!changed_.insert(name).second)
      fail("layer {}: it cannot share {} with another kind of layer on this device: export the network without that",
           node.name, name);
    chosen = planned[i];
    return false;
  }
  return true;
}

}  // namespace annulus
