#include "models/parameters.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <numbers>

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

}  // namespace

Parameters::Parameters(Device& device, const Graph& graph, const std::vector<std::vector<TensorSpec>>& layouts,
                       const Allocate& allocate_gradients, const Allocate& allocate_weights,
                       const std::optional<Range>& stage)
    : device_(device), of_node_(graph.nodes().size()), node_gradients_(graph.nodes().size()) {
  all_.push_back({"steering", Role::metric, 0, 0, 0, device.plain({kSteering}, DataType::f32), 0, 0, 0});
  place(all_.back());
  const Range nodes = stage.value_or(Range{0, graph.nodes().size()});
  std::map<std::string, std::size_t> numbers, places;  // of the parameters, in the whole network and in all_
  for (std::size_t node = graph.nodes().size(); node-- > nodes.begin;) {
    const Node& n = graph.nodes()[node];
    const auto declared = graph.all_parameters(n);
    node_gradients_[node].begin = bytes_;
    for (std::size_t i = 0; i < declared.size(); ++i) {
      const std::string name = parameter_name(n, declared[i].name);
      const std::size_t number = numbers.try_emplace(name, numbers.size() + 1).first->second;
      if (node >= nodes.end) continue;
      const auto [place_in_all, is_new] = places.try_emplace(name, all_.size());
      of_node_[node].push_back(place_in_all->second);
      if (!is_new) continue;
      all_.push_back({name, declared[i].role, declared[i].initial, declared[i].stddev, declared[i].statistic_momentum,
                      layouts[node][i], 0, 0, number});
      if (declared[i].role != Role::frozen) place(all_.back());
    }
    node_gradients_[node].end = bytes_;
  }
  const std::size_t gradient_bytes = bytes_;
  for (Parameter& p : all_)
    if (p.role == Role::frozen) place(p);
  if (!allocate_weights) own_weights_ = device.allocate(bytes_);
  weights_ = allocate_weights ? allocate_weights(bytes_) : own_weights_.view();
  if (device.info().value_type != DataType::f32) copies_ = device.allocate(bytes_ / kNarrower);
  if (!allocate_gradients) own_gradients_ = device.allocate(gradient_bytes);
  gradients_ = allocate_gradients ? allocate_gradients(gradient_bytes) : own_gradients_.view();
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
