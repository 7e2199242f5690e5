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

struct Memory {
  double bytes;
  std::string name;
};

Memory memory_of(const Device& device) {
  if (!device.info().shares_host_memory)
    return {static_cast<double>(device.info().free_bytes), "this rank's share of the GPU's free memory"};
  const AllowedMemory& allowed = allowed_memory();
  const std::size_t share = memory_share();
  return {static_cast<double>(share), (share < allowed.bytes ? "this rank's share of " : "") + allowed.source};
}

// In bytes. `fits`: the largest batch that would fit; 0: unknown, or none.
void expect_memory(const Memory& memory, const Graph& graph, std::size_t batch, double needed, std::size_t fits = 0) {
  constexpr double kGiB = 1 << 30;
  if (needed <= memory.bytes) return;
  fail("this network takes at least {:.1f} GiB of memory with a batch of {}, and {} has {:.1f} GiB: {}{}",
       needed / kGiB, graph.samples_text(batch), memory.name, memory.bytes / kGiB,
       fits > 0 ? fmt::format("a batch of {} would fit; ", fits) : "",
       graph.reads_tokens() ? "use a smaller --batch (or train --accumulate) or --length"
                            : "use a smaller --batch (or train --accumulate), smaller images, or fewer classes");
}

// Checks a planned network before memory is allocated: activations, and in training the gradients and `states` arrays
// like them. (Ranks on CPUs may share a node's weights.)
void expect_plan_to_fit(const Device& device, const Graph& graph, Mode mode, std::size_t batch, const Network& network,
                        std::size_t states) {
  // Memory reserved for images, masks and workspaces, which are allocated later.
  constexpr double kPerActivation = 1.0 / 8, kPerMemory = 1.0 / 32;
  double parameters = 0;
  for (const auto& of_node : network.parameter_layouts())
    for (const TensorSpec& parameter : of_node) parameters += static_cast<double>(parameter.layout->bytes());
  double arrays = mode == Mode::training ? 1 + static_cast<double>(states) : 0;
  if (!device.info().shares_host_memory) arrays += device.info().value_type == DataType::f32 ? 1 : 1.5;
  const auto activations = static_cast<double>(network.activation_plan().bytes());
  const Memory memory = memory_of(device);
  const double left = memory.bytes * (1 - kPerMemory) - arrays * parameters;
  const auto fits =
      static_cast<std::size_t>(std::max(0.0, left / (activations * (1 + kPerActivation))) * static_cast<double>(batch));
  expect_memory(memory, graph, batch, activations + arrays * parameters, std::min(fits, batch - 1));
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
  expect_memory(memory_of(device), graph, batch,
                (mode == Mode::training ? 2 : 1) * parameters + static_cast<double>(batch) * largest);
}

std::size_t activation_arena_bytes(Device& device, const Graph& graph, Mode mode, std::size_t batch) {
  const Graph planned = planned_graph(graph);
  return Network(device, planned, mode, batch, {}).activation_plan().bytes();
}

Model::Model(Device& device, const Graph& graph, Mode mode, std::size_t batch,
             const Parameters::Allocate& allocate_gradients, const Network::Planned& planned,
             const Parameters::Allocate& allocate_weights, const std::optional<Range>& stage, std::size_t states)
    : device_(device), graph_(planned_graph(graph)), planned_(planned), stage_(stage), states_(states) {
  expect_to_fit(device, graph_, mode, batch, stage);
  auto first = std::make_unique<Network>(device, graph_, mode, batch, layouts_, planned_, stage_);
  expect_plan_to_fit(device, graph_, mode, batch, *first, states_);
  layouts_ = first->parameter_layouts();
  parameters_ = std::make_unique<Parameters>(device, graph_, layouts_, allocate_gradients, allocate_weights, stage);
  first->bind(*parameters_, memory_.try_emplace(0, device).first->second);
  networks_[{mode, batch, 0}] = std::move(first);
}

Network& Model::network(Mode mode, std::size_t batch, std::size_t slot) {
  auto& network = networks_[{mode, batch, slot}];
  if (!network) {
    network = std::make_unique<Network>(device_, graph_, mode, batch, layouts_, planned_, stage_);
    expect_plan_to_fit(device_, graph_, mode, batch, *network, states_);
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

std::size_t Model::activation_bytes() const {
  std::size_t sum = 0;
  for (const auto& [slot, arena] : memory_) sum += arena.bytes();
  return sum;
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
