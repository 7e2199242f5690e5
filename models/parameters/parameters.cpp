#include "models/parameters/parameters.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <numbers>
#include <span>

#include "kernels/base/random.h"

namespace annulus {
namespace {

constexpr std::size_t kSlotAlignment = 64;

// Uniform in (0, 1], from the upper 53 bits.
double uniform(std::uint64_t word) {
  return (static_cast<double>(word >> 11) + 1) * 0x1p-53;
}

// Normally distributed (Box and Muller, 1958).
float normal(std::uint64_t seed, std::uint64_t parameter, std::uint64_t element) {
  const double radius = std::sqrt(-2 * std::log(uniform(mix(seed, parameter, 2 * element))));
  return static_cast<float>(radius * std::cos(2 * std::numbers::pi * uniform(mix(seed, parameter, 2 * element + 1))));
}

// Makes the first outputs copy the inputs, see ParameterDeclaration.
void make_copies(const Shape& weights, std::span<float> values) {
  const std::size_t inputs = weights[1], height = weights[2], width = weights[3], area = height * width;
  for (std::size_t output = 0; output < std::min(weights[0], inputs); ++output) {
    const auto filter = values.subspan(output * inputs * area, inputs * area);
    std::ranges::fill(filter, 0.0f);
    filter[output * area + height / 2 * width + width / 2] = 1;
  }
}

// Returns the parameters' numbers, by their names.
std::map<std::string, std::size_t> number_parameters(const Graph& graph) {
  const ParameterUses uses = find_parameter_uses(graph, {0, graph.nodes().size()});
  std::map<std::string, std::size_t> numbers;
  for (std::size_t node = graph.nodes().size(); node-- > 0;)
    for (const ParameterDeclaration& p : graph.all_parameters(graph.nodes()[node])) {
      const std::string name = parameter_name(graph.nodes()[node], p.name);
      if (last_in_backward(graph, uses.at(name)) == node) numbers.emplace(name, numbers.size() + 1);
    }
  return numbers;
}

}  // namespace

Parameters::Parameters(Device& device, const Graph& graph, const std::vector<std::vector<TensorSpec>>& layouts,
                       const Allocate& allocate_gradients, const Allocate& allocate_weights,
                       const std::optional<Range>& stage)
    : device_(device), of_node_(graph.nodes().size()), node_gradients_(graph.nodes().size()) {
  all_.push_back({"control flags", Role::metric, 0, 0, 0, device.plain({kControlFlags}, DataType::f32), 0, 0, 0});
  place(all_.back());
  add_all(graph, layouts, stage.value_or(Range{0, graph.nodes().size()}));
  const std::size_t gradient_bytes = bytes_;
  for (Parameter& p : all_)
    if (p.role == Role::frozen) place(p);
  if (!allocate_weights) own_weights_ = device.allocate(bytes_);
  weights_ = allocate_weights ? allocate_weights(bytes_) : own_weights_.view();
  if (device.info().value_type != DataType::f32) copies_ = device.allocate(bytes_ / kNarrower);
  if (!allocate_gradients) own_gradients_ = device.allocate(gradient_bytes);
  gradients_ = allocate_gradients ? allocate_gradients(gradient_bytes) : own_gradients_.view();
  if (second_bytes_ > 0) second_ = device.allocate(second_bytes_);
}

void Parameters::add_all(const Graph& graph, const std::vector<std::vector<TensorSpec>>& layouts, const Range& nodes) {
  const ParameterUses uses = find_parameter_uses(graph, nodes);
  const auto numbers = number_parameters(graph);
  std::map<std::string, std::size_t> places;  // in all_
  for (std::size_t node = nodes.end; node-- > nodes.begin;) {
    const Node& n = graph.nodes()[node];
    const auto declared = graph.all_parameters(n);
    node_gradients_[node].begin = bytes_;
    for (std::size_t i = 0; i < declared.size(); ++i) {
      const std::string name = parameter_name(n, declared[i].name);
      if (last_in_backward(graph, uses.at(name)) != node) continue;
      places[name] = all_.size();
      all_.push_back({name, declared[i].role, declared[i].initial, declared[i].stddev, declared[i].statistic_momentum,
                      layouts[node][i], 0, 0, numbers.at(name)});
      all_.back().begins_as_copy = declared[i].begins_as_copy;
      if (declared[i].role != Role::frozen) place(all_.back());
    }
    node_gradients_[node].end = bytes_;
  }
  for (std::size_t node = nodes.begin; node < nodes.end; ++node)
    for (const ParameterDeclaration& p : graph.all_parameters(graph.nodes()[node]))
      of_node_[node].push_back(places.at(parameter_name(graph.nodes()[node], p.name)));
  for (const auto& [name, of_name] : uses) share(graph, all_[places.at(name)], of_name);
}

// Prepares a parameter for gradients from several nodes.
void Parameters::share(const Graph& graph, Parameter& parameter, const std::vector<ParameterUse>& uses) {
  std::vector<float> momenta;
  for (const ParameterUse& use : uses)
    if (!leaves_out(graph, uses, use.node))
      momenta.push_back(graph.all_parameters(graph.nodes()[use.node])[use.declared].statistic_momentum);
  if (momenta.size() < 2 || parameter.role == Role::frozen) return;
  parameter.second_slot = second_bytes_;
  second_bytes_ += parameter.bytes;
  if (parameter.role == Role::statistic) parameter.statistic_momentum = join_statistics(momenta).momentum;
}

void Parameters::place(Parameter& parameter) {
  parameter.offset = bytes_;
  parameter.bytes = (parameter.spec.layout->bytes() + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
  bytes_ += parameter.bytes;
}

std::vector<Parameter> Parameters::updated() const {
  std::vector<Parameter> some;
  std::ranges::copy_if(all_, std::back_inserter(some), [](const Parameter& p) { return p.role != Role::frozen; });
  return some;
}

std::size_t Parameters::count() const {
  std::size_t total = 0;
  for (const Parameter& p : all_)
    if (p.trained()) total += elements(p.spec.shape);
  return total;
}

std::size_t Parameters::count_frozen() const {
  std::size_t total = 0;
  for (const Parameter& p : all_)
    if (p.role == Role::frozen) total += elements(p.spec.shape);
  return total;
}

std::vector<const Parameter*> Parameters::of_node(std::size_t node) const {
  std::vector<const Parameter*> own;
  for (const std::size_t number : of_node_[node]) own.push_back(&all_[number]);
  return own;
}

void Parameters::initialize(std::uint64_t seed) {
  std::vector<float> values;
  for (const Parameter& p : all_) {
    values.assign(elements(p.spec.shape), p.initial);
    if (p.stddev > 0)
      for (std::size_t element = 0; element < values.size(); ++element)
        values[element] = p.stddev * normal(seed, p.number, element);
    if (p.begins_as_copy) make_copies(p.spec.shape, values);
    device_.write(values, p.spec, weight(p));
  }
  weights_changed();
}

void Parameters::swap_weights(DeviceView other) {
  device_.swap(weights().slice(0, other.bytes), other);
  weights_changed();
}

void Parameters::weights_changed() {
  weights_changed({0, weights().bytes / sizeof(float)});
}

void Parameters::weights_changed(const Range& range) {
  if (!copies()) return;
  const std::size_t begin = range.begin * sizeof(float), bytes = range.size() * sizeof(float);
  device_.cast_params(weights().slice(begin, bytes), copies().slice(begin / kNarrower, bytes / kNarrower));
}

}  // namespace annulus
