#include "src/scaling/step_profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/lane_span.h"
#include "kernels/base/median.h"
#include "src/metrics/results.h"
#include "src/step/embedding_exchange.h"

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
      if (parameters.has_gradient(node, *parameter)) bytes[node].push_back(parameter->bytes);
  if (!bytes.empty()) bytes.back().insert(bytes.back().begin(), parameters.steering().bytes);
  return bytes;
}

void pass(Network& network, const Batch& batch) {
  network.forward();
  network.backward(1.0f / static_cast<float>(batch.step.global_batch()), [](std::size_t) {});
}

// Returns the time of an exchange without all-reduces. If `all_tokens`, other ranks have every token of the vocabulary.
double exchange_seconds(Model& model, AllReduce& none, EmbeddingExchange& exchange,
                        std::span<const std::int32_t> windows, const Network::EmbeddingGradient& gradient,
                        bool all_tokens) {
  const TokenShape& shape = model.graph().tokens();
  Device& device = model.device();
  std::vector<std::int32_t> vocabulary(shape.vocabulary + 1);  // as one window
  std::iota(vocabulary.begin(), vocabulary.end(), 0);
  std::vector<double> seconds;
  for (std::size_t pass = 0; pass <= kFewestPasses; ++pass) {
    const Mark begun = device.mark();
    none.wait(all_tokens ? exchange.send_tokens(vocabulary, shape.vocabulary)
                         : exchange.send_tokens(windows, shape.length));
    none.wait(exchange.send_rows(windows, shape.length, gradient));
    exchange.add_rows(gradient.table);
    const Mark ended = device.mark();
    device.finish();
    if (pass > 0) seconds.push_back(device.seconds(ended) - device.seconds(begun));  // the first one touches the memory
  }
  return median(std::move(seconds));
}

double nonnegative(const nlohmann::json& json, const char* name) {
  const double found = json.at(name).get<double>();
  if (!(found >= 0)) fail("{} is {}", name, found);
  return found;
}

double milliseconds(const nlohmann::json& json, const char* name) {
  return 1e-3 * nonnegative(json, name);
}

std::size_t valid_bytes(std::int64_t bytes, const char* name) {
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  if (bytes < 0 || bytes > kMost || bytes % sizeof(float) != 0) fail("{} is {}", name, bytes);
  return static_cast<std::size_t>(bytes);
}

std::vector<std::size_t> gradient_bytes(const nlohmann::json& json) {
  std::vector<std::size_t> found;
  for (const auto bytes : json.at("gradient_bytes").get<std::vector<std::int64_t>>())
    found.push_back(valid_bytes(bytes, "gradient_bytes"));
  return found;
}

EmbeddingProfile embedding_from_json(const nlohmann::json& json) {
  constexpr std::int64_t kMost = std::int64_t{1} << 31;
  const auto vocabulary = json.at("vocabulary").get<std::int64_t>();
  if (vocabulary < 1 || vocabulary > kMost) fail("vocabulary is {}", vocabulary);
  return {.vocabulary = static_cast<std::size_t>(vocabulary),
          .row_bytes = valid_bytes(json.at("row_bytes").get<std::int64_t>(), "row_bytes"),
          .own_seconds = milliseconds(json, "own_ms"),
          .row_seconds = 1e-6 * nonnegative(json, "row_us")};
}

StepProfile from_json(const nlohmann::json& json) {
  StepProfile profile{.model = json.at("model").get<std::string>(),
                      .batch = json.at("batch").get<std::size_t>(),
                      .ranks = json.at("ranks").get<std::size_t>(),
                      .length = json.value("length", std::size_t{0}),
                      .input_seconds = milliseconds(json, "input_ms"),
                      .optimizer_seconds = milliseconds(json, "optimizer_ms"),
                      .layers = {}};
  for (const nlohmann::json& layer : json.at("layers"))
    profile.layers.push_back({layer.at("name").get<std::string>(), milliseconds(layer, "forward_ms"),
                              milliseconds(layer, "backward_ms"), gradient_bytes(layer)});
  if (json.contains("embedding")) profile.embedding = embedding_from_json(json["embedding"]);
  if (profile.embedding && profile.length == 0) fail("there is an embedding, but no length");
  if (profile.batch == 0 || profile.ranks == 0 || profile.layers.empty()) fail("batch, ranks or layers are 0");
  return profile;
}

}  // namespace

double EmbeddingProfile::different_tokens(std::size_t tokens) const {
  const auto all = static_cast<double>(vocabulary);
  return -all * std::expm1(static_cast<double>(tokens) * std::log1p(-1 / all));
}

std::string StepProfile::batch_text() const {
  return length > 0 ? fmt::format("{} windows of {} tokens", batch, length) : fmt::format("{} images", batch);
}

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

// The time is linear in the number of different tokens: it is measured with this rank's tokens, and with all of the
// vocabulary's.
std::optional<EmbeddingProfile> profile_embedding(Model& model, const Batch& batch, AllReduce& none) {
  const auto& gradient = model.network(Mode::training, batch.size()).embedding_gradient();
  if (!gradient) return std::nullopt;
  const TokenShape& shape = model.graph().tokens();
  const auto windows = windows_in(batch.images);
  std::vector<std::int32_t> tokens;
  take_tokens(windows, shape.length, shape.vocabulary, 0, tokens);
  std::set<std::int32_t> different(tokens.begin(), tokens.end());
  different.erase(-1);

  EmbeddingExchange exchange(model.device(), none, shape.vocabulary, gradient->width,
                             std::max(shape.vocabulary, batch.size() * shape.length));
  const double own = exchange_seconds(model, none, exchange, windows, *gradient, false);
  const double all = exchange_seconds(model, none, exchange, windows, *gradient, true);
  const auto rows = static_cast<double>(different.size()), more = static_cast<double>(shape.vocabulary) - rows;
  const double row_seconds = more > 0 ? std::max(0.0, (all - own) / more) : 0;
  return EmbeddingProfile{.vocabulary = shape.vocabulary,
                          .row_bytes = gradient->width * sizeof(float),
                          .own_seconds = std::max(0.0, own - rows * row_seconds),
                          .row_seconds = row_seconds};
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
  if (profile.length > 0) json["length"] = profile.length;
  if (const auto& embedding = profile.embedding)
    json["embedding"] = {{"vocabulary", embedding->vocabulary},
                         {"row_bytes", embedding->row_bytes},
                         {"own_ms", 1e3 * embedding->own_seconds},
                         {"row_us", 1e6 * embedding->row_seconds}};
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
