#include "models/parameters/shared_gradients.h"

#include <algorithm>

namespace annulus {

SharedGradients::SharedGradients(const Graph& graph, const std::vector<std::size_t>& order,
                                 const Parameters& parameters)
    : parts_(graph.nodes().size()) {
  const auto [first, last] = std::ranges::minmax(order);
  std::vector<std::size_t> place(graph.nodes().size());
  for (std::size_t k = 0; k < order.size(); ++k) place[order[k]] = k;
  for (auto& [name, uses] : find_parameter_uses(graph, {first, last + 1})) {
    const Parameter& p = *parameters.of_node(uses[0].node)[uses[0].declared];
    if (!p.second_slot) continue;
    std::erase_if(uses, [&, all = uses](const ParameterUse& use) { return leaves_out(graph, all, use.node); });
    const auto begins = std::ranges::max(uses, {}, [&](const ParameterUse& use) { return place[use.node]; }).node;
    std::vector<float> shares(uses.size(), 1), momenta;
    for (const ParameterUse& use : uses)
      momenta.push_back(graph.all_parameters(graph.nodes()[use.node])[use.declared].statistic_momentum);
    if (p.role == Role::statistic) shares = join_statistics(momenta).shares;
    const DeviceView sum = parameters.gradient(p), second = parameters.second_gradient(p);
    for (std::size_t i = 0; i < uses.size(); ++i)
      parts_[uses[i].node].push_back({&p, uses[i].node == begins ? sum : second, sum, shares[i]});
  }
}

DeviceView SharedGradients::destination(std::size_t node, const Parameter& parameter) const {
  return std::ranges::find(parts_[node], &parameter, &Part::parameter)->written;
}

void SharedGradients::add(Device& device, std::size_t node) const {
  for (const auto& [parameter, written, sum, share] : parts_[node]) {
    const bool first = written.address == sum.address;
    if (first && share != 1)
      device.scale(sum, share, sum);
    else if (!first && share != 1)
      device.add_scaled(written, share, sum);
    else if (!first)
      device.add(written, sum, DataType::f32);
  }
}

}  // namespace annulus
