#include "models/network/model.h"

#include <algorithm>
#include <span>

#include "kernels/base/allowed_resources.h"
#include "kernels/base/error.h"
#include "models/graph/cost.h"
#include "models/rewrites/fusion.h"
#include "models/rewrites/unused_gradients.h"

namespace annulus {

Graph planned_graph(const Graph& graph) {
  return prune_unused_gradients(fuse(graph));
}

namespace {

// `needed`: bytes.
void expect_memory(const Graph& graph, std::size_t batch, double needed) {
  constexpr double kGiB = 1 << 30;
  const AllowedMemory& allowed = allowed_memory();
  const std::size_t memory = memory_share();
  if (needed <= static_cast<double>(memory)) return;
  const std::string share = memory < allowed.bytes ? "this rank's share of " : "";
  fail("this network takes at least {:.1f} GiB of memory with a batch of {}, and {}{} has {:.1f} GiB: {}",
       needed / kGiB, graph.samples_text(batch), share, allowed.source, static_cast<double>(memory) / kGiB,
       graph.reads_tokens() ? "use a smaller --batch (or train --accumulate) or --length"
                            : "use a smaller --batch (or train --accumulate), smaller images, or fewer classes");
}

// Checks a planned network's activations and gradients before their memory is allocated. (A node's ranks may share the
// weights.)
void expect_plan_to_fit(const Device& device, const Graph& graph, Mode mode, std::size_t batch,
                        const Network& network) {
  if (!device.info().shares_host_memory) return;
  double gradients = 0;
  if (mode == Mode::training)
    for (const auto& of_node : network.parameter_layouts())
      for (const TensorSpec& parameter : of_node) gradients += static_cast<double>(parameter.layout->bytes());
  expect_memory(graph, batch, static_cast<double>(network.activation_plan().bytes()) + gradients);
}

}  // namespace

void expect_to_fit(const Device& device, const Graph& graph, Mode mode, std::size_t batch,
                   const std::optional<Range>& stage) {
  if (!device.info().shares_host_memory) return;
  double parameters = 0, largest = 0;
  const std::vector<Cost> costs = node_costs(graph);
  const Range nodes = stage.value_or(Range{0, costs.size()});
  for (const Cost& cost : std::span(costs).subspan(nodes.begin, nodes.size())) {
    parameters += static_cast<double>(cost.gradient_bytes());
    largest = std::max(largest, static_cast<double>(cost.activation_bytes));
  }
  expect_memory(graph, batch, (mode == Mode::training ? 2 : 1) * parameters + static_cast<double>(batch) * largest);
}

std::size_t activation_arena_bytes(Device& device, const Graph& graph, Mode mode, std::size_t batch) {
  const Graph planned = planned_graph(graph);
  return Network(device, planned, mode, batch, {}).activation_plan().bytes();
}

Model::Model(Device& device, const Graph& graph, Mode mode, std::size_t batch,
             const Parameters::Allocate& allocate_gradients, const Network::Planned& planned,
             const Parameters::Allocate& allocate_weights, const std::optional<Range>& stage)
    : device_(device), graph_(planned_graph(graph)), planned_(planned), stage_(stage) {
  expect_to_fit(device, graph_, mode, batch, stage);
  auto first = std::make_unique<Network>(device, graph_, mode, batch, layouts_, planned_, stage_);
  expect_plan_to_fit(device, graph_, mode, batch, *first);
  layouts_ = first->parameter_layouts();
  parameters_ = std::make_unique<Parameters>(device, graph_, layouts_, allocate_gradients, allocate_weights, stage);
  first->bind(*parameters_, memory_.try_emplace(0, device).first->second);
  networks_[{mode, batch, 0}] = std::move(first);
}

Network& Model::network(Mode mode, std::size_t batch, std::size_t slot) {
  auto& network = networks_[{mode, batch, slot}];
  if (!network) {
    network = std::make_unique<Network>(device_, graph_, mode, batch, layouts_, planned_, stage_);
    expect_plan_to_fit(device_, graph_, mode, batch, *network);
    network->bind(*parameters_, memory_.try_emplace(slot, device_).first->second);
    network->link(links_);
    if (mode == Mode::training) {
      network->record_to(lane_);
      network->sum_over_ranks(sum_);
      network->stop_at(stops_);
    }
  }
  return *network;
}

const std::optional<Network::EmbeddingGradient>& Model::embedding_gradient() const {
  const auto trains = [](const auto& network) { return std::get<Mode>(network.first) == Mode::training; };
  return std::ranges::find_if(networks_, trains)->second->embedding_gradient();
}

void Model::stop_at(const Network::Stops& stops) {
  stops_ = stops;
  for (auto& [use, network] : networks_)
    if (std::get<Mode>(use) == Mode::training) network->stop_at(stops);
}

void Model::sum_over_ranks(const SumOverRanks& sum) {
  sum_ = sum;
  for (auto& [use, network] : networks_)
    if (std::get<Mode>(use) == Mode::training) network->sum_over_ranks(sum);
}

void Model::link(const StageLinks& links) {
  links_ = links;
  for (auto& [use, network] : networks_) network->link(links);
}

void Model::record_to(TraceLane* lane) {
  lane_ = lane;
  for (auto& [use, network] : networks_)
    if (std::get<Mode>(use) == Mode::training) network->record_to(lane);
}

}  // namespace annulus
