#include "src/scaling/step_profile.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "kernels/base/error.h"
#include "kernels/base/lane_span.h"
#include "kernels/base/median.h"
#include "src/metrics/results.h"

namespace annulus {
namespace {

constexpr std::size_t kFewestPasses = 3;
constexpr std::size_t kMostPasses = 100;

double sum_of(const std::vector<LayerProfile>& layers, double LayerProfile::*seconds) {
  return std::transform_reduce(layers.begin(), layers.end(), 0.0, std::plus(),
                               [seconds](const LayerProfile& layer) { return layer.*seconds; });
}

// Where the spans of a pass's layers are, in the order in which spans end: forward layer by layer, all of forward,
// backward from the last layer to the first one that has a backward pass, all of backward.
struct SpansOfPass {
  explicit SpansOfPass(const Graph& graph) : backward(graph.nodes().size()) {
    const auto wanted = graph.required_gradients();
    count = backward.size() + 1;
    for (std::size_t layer = backward.size(); layer-- > 0;)
      if (wanted[Graph::output(layer)]) backward[layer] = count++;
    ++count;
  }

  std::vector<std::optional<std::size_t>> backward;  // of each layer; its forward span's place is the layer's number
  std::size_t count;
};

// In the arena's order. The part before all layers counts to the last layer, with which backward begins.
std::vector<std::vector<std::size_t>> gradient_bytes(const Model& model) {
  const Parameters& parameters = model.parameters();
  std::vector<std::vector<std::size_t>> bytes(model.graph().nodes().size());
  for (std::size_t node = 0; node < bytes.size(); ++node)
    for (const Parameter* parameter : parameters.of_node(node))
      if (parameter->role != Role::frozen) bytes[node].push_back(parameter->bytes);
  if (!bytes.empty()) bytes.back().insert(bytes.back().begin(), parameters.steering().bytes);
  return bytes;
}

void pass(Network& network, const Batch& batch) {
  network.forward();
  network.backward(1.0f / static_cast<float>(batch.step.global_batch()), [](std::size_t) {});
}

double milliseconds(const nlohmann::json& json, const char* name) {
  const double found = json.at(name).get<double>();
  if (!(found >= 0)) fail("{} is {}", name, found);
  return 1e-3 * found;
}

std::vector<std::size_t> gradient_bytes(const nlohmann::json& json) {
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  std::vector<std::size_t> found;
  for (const auto bytes : json.at("gradient_bytes").get<std::vector<std::int64_t>>()) {
    if (bytes < 0 || bytes > kMost || bytes % sizeof(float) != 0) fail("gradient_bytes is {}", bytes);
    found.push_back(static_cast<std::size_t>(bytes));
  }
  return found;
}

StepProfile from_json(const nlohmann::json& json) {
  StepProfile profile{.model = json.at("model").get<std::string>(),
                      .batch = json.at("batch").get<std::size_t>(),
                      .ranks = json.at("ranks").get<std::size_t>(),
                      .input_seconds = milliseconds(json, "input_ms"),
                      .optimizer_seconds = milliseconds(json, "optimizer_ms"),
                      .layers = {}};
  for (const nlohmann::json& layer : json.at("layers"))
    profile.layers.push_back({layer.at("name").get<std::string>(), milliseconds(layer, "forward_ms"),
                              milliseconds(layer, "backward_ms"), gradient_bytes(layer)});
  if (profile.batch == 0 || profile.ranks == 0 || profile.layers.empty()) fail("batch, ranks or layers are 0");
  return profile;
}

}  // namespace

double StepProfile::forward_seconds() const {
  return sum_of(layers, &LayerProfile::forward_seconds);
}

double StepProfile::backward_seconds() const {
  return sum_of(layers, &LayerProfile::backward_seconds);
}

std::vector<LayerProfile> profile_layers(Model& model, const Batch& batch, double seconds) {
  Network& network = model.network(Mode::training, batch.size());
  Device& device = model.device();
  network.load(batch.images, batch.labels_of({0, batch.size()}), batch.keys);
  const Mark begun = device.mark();
  pass(network, batch);
  const Mark ended = device.mark();
  const auto passes = static_cast<std::size_t>(
      std::clamp<double>(seconds / (device.seconds(ended) - device.seconds(begun)), kFewestPasses, kMostPasses));

  const SpansOfPass places(model.graph());
  TraceLane lane(passes * places.count);
  lane.record(true);
  network.record_to(&lane);
  for (std::size_t i = 0; i < passes; ++i) pass(network, batch);
  network.record_to(nullptr);
  resolve(device, lane, lane.spans().size());

  const auto bytes = gradient_bytes(model);
  const auto median_of = [&](std::size_t place) {
    std::vector<double> found;
    for (std::size_t i = place; i < lane.spans().size(); i += places.count)
      found.push_back(lane.spans()[i].end - lane.spans()[i].begin);
    return median(std::move(found));
  };
  std::vector<LayerProfile> layers;
  for (std::size_t i = 0; i < bytes.size(); ++i)
    layers.push_back({model.graph().nodes()[i].name, median_of(i),
                      places.backward[i] ? median_of(*places.backward[i]) : 0, bytes[i]});
  return layers;
}

nlohmann::json to_json(const StepProfile& profile) {
  nlohmann::json json{{"model", profile.model},
                      {"batch", profile.batch},
                      {"ranks", profile.ranks},
                      {"input_ms", 1e3 * profile.input_seconds},
                      {"optimizer_ms", 1e3 * profile.optimizer_seconds},
                      {"layers", nlohmann::json::array()}};
  for (const LayerProfile& layer : profile.layers)
    json["layers"].push_back({{"name", layer.name},
                              {"forward_ms", 1e3 * layer.forward_seconds},
                              {"backward_ms", 1e3 * layer.backward_seconds},
                              {"gradient_bytes", layer.gradient_bytes}});
  return json;
}

StepProfile read_profile(const std::filesystem::path& file) {
  const nlohmann::json json = read_json(file);
  if (!json.contains("profile"))
    fail("{} has no profile of a step; create one with annulus bench step --json", file.string());
  try {
    return from_json(json["profile"]);
  } catch (const std::exception& error) {
    fail("{}: not a profile of a step: {}; create one with annulus bench step --json", file.string(), error.what());
  }
}

}  // namespace annulus
