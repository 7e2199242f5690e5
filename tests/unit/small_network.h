#pragma once

#include <cmath>
#include <map>

#include "models/network/model.h"
#include "tests/unit/random_values.h"

namespace annulus::test {

// A graph without Model's fusion, with parameters of its own.
struct PlainNetwork {
  PlainNetwork(Device& device, const Graph& graph, std::size_t batch)
      : network(device, graph, Mode::training, batch, {}),
        parameters(device, graph, network.parameter_layouts(), {}, {}),
        memory(device) {
    network.bind(parameters, memory);
  }

  Network network;
  Parameters parameters;
  ActivationArena memory;
};

struct Samples {
  Samples(const Graph& graph, std::size_t batch, std::uint64_t classes, std::uint64_t seed)
      : images(random_pixels(batch * graph.image().height * graph.image().width * graph.image().channels, seed)),
        labels(random_labels(batch, classes, seed + 1)),
        keys(random_labels(batch, 1 << 30, seed + 2)) {}

  std::vector<std::uint8_t> images;
  std::vector<std::int32_t> labels, keys;
};

inline void run(Network& network, const Samples& samples, float weight) {
  network.load(samples.images, {samples.labels}, samples.keys);
  network.forward();
  network.backward(weight);
}

// Loads windows of tokens, {batch, length + 1}.
inline void load_windows(Network& network, const std::vector<std::int32_t>& windows,
                         std::span<const std::int32_t> keys = {}) {
  const auto bytes = std::as_bytes(std::span(windows));
  const std::vector<std::int32_t> labels(network.batch());
  network.load({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()}, {labels}, keys);
}

inline std::vector<float> read(Device& device, const Parameter& p, DeviceView view) {
  std::vector<float> values(elements(p.spec.shape));
  device.read(p.spec, view, values);
  return values;
}

// Of parameters that are not frozen, by name.
inline std::map<std::string, std::vector<float>> gradients(Device& device, const Parameters& parameters) {
  std::map<std::string, std::vector<float>> all;
  for (const Parameter& p : parameters.updated())
    if (p.role != Role::metric) all[p.name] = read(device, p, parameters.gradient(p));
  return all;
}

template <class Values>
double norm(const Values& values) {
  double squares = 0;
  for (const double value : values) squares += value * value;
  return std::sqrt(squares);
}

inline double distance(const std::vector<float>& a, const std::vector<float>& b) {
  std::vector<double> difference;
  for (std::size_t i = 0; i < a.size(); ++i)
    difference.push_back(static_cast<double>(a.at(i)) - static_cast<double>(b.at(i)));
  return norm(difference);
}

}  // namespace annulus::test
