#include "src/scaling/step_profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
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

// Where a pass's layers have their spans, in the order in which spans end: forward layer by layer, all of forward,
// backward from the last layer to the first that has a backward pass, all of backward.
struct SpansOfPass {
  explicit SpansOfPass(const Graph& graph) : backward(graph.nodes().size()) {
    const auto wanted = graph.required_gradients();
    count = backward.size() + 1;
    for (std::size_t layer = backward.size(); layer-- > 0;)
      if (wanted[Graph::output(layer)]) backward[layer] = count++;
    ++count;
  }

  std::vector<std::optional<std::size_t>> backward;  // for each layer; the forward span's place is the layer's number
  std::size_t count;
};

// In the arena's order. The part before all layers counts to the last layer, with which backward begins.
std::vector<std::vector<std::size_t>> gradient_bytes(const Model& model) {
  const Parameters& parameters = model.parameters();
  std::vector<std::vector<std::size_t>> bytes(model.graph().nodes().size());
  for (std::size_t node = 0; node < bytes.size(); ++node)
    for (const Parameter* parameter : parameters.of_node(node))
      if (parameters.has_gradient(node, *parameter)) bytes[node].push_back(parameter->bytes);
  if (!bytes.empty()) bytes.back().insert(bytes.back().begin(), parameters.control_flags().bytes);
  return bytes;
}

void pass(Network& network, const Batch& batch, const Network::Ready& ready) {
  network.forward();
  network.backward(1.0f / static_cast<float>(batch.step.global_batch()), ready);
}

// The reports that gradients are final before their layer's backward ends, in all passes.
class EarlyReports {
 public:
  EarlyReports(Device& device, const std::vector<std::vector<std::size_t>>& gradient_bytes)
      : device_(device), layers_(gradient_bytes.size()), seconds_(gradient_bytes.size()) {
    std::size_t end = 0;
    for (std::size_t layer = layers_.size(); layer-- > 0; end = layers_[layer].end)
      layers_[layer] = {end, std::reduce(gradient_bytes[layer].begin(), gradient_bytes[layer].end(), end)};
  }

  // To be called by a pass's backward.
  void add(std::size_t gradients) { pass_.push_back({gradients * sizeof(float), device_.mark()}); }

  // `begun(layer)`: when the layer's backward began in this pass.
  template <class Begun>
  void end_pass(const Begun& begun) {
    for (std::size_t i = 0; i + 1 < pass_.size(); ++i) {
      const std::size_t layer = layer_of(pass_[i].bytes);
      if (layer != layer_of(pass_[i + 1].bytes)) continue;  // a layer's last report marks its end
      seconds_[layer][pass_[i].bytes - layers_[layer].begin].push_back(device_.seconds(pass_[i].at) - begun(layer));
    }
    pass_.clear();
  }

  std::vector<LayerProfile::Early> of(std::size_t layer) const {
    std::vector<LayerProfile::Early> found;
    for (const auto& [bytes, seconds] : seconds_[layer]) found.push_back({bytes, median(seconds)});
    return found;
  }

 private:
  struct Report {
    std::size_t bytes;  // from the arena's start
    Mark at;
  };

  std::size_t layer_of(std::size_t bytes) const {
    const auto reached = [bytes](const Range& layer) { return layer.begin < bytes && bytes <= layer.end; };
    return static_cast<std::size_t>(std::ranges::find_if(layers_, reached) - layers_.begin());
  }

  Device& device_;
  std::vector<Range> layers_;                                        // where their gradients are in the arena, in bytes
  std::vector<Report> pass_;                                         // from the pass that is running
  std::vector<std::map<std::size_t, std::vector<double>>> seconds_;  // for each layer, by bytes from the first gradient
};

// Returns how long an exchange takes without all-reduces. If `all_tokens`, other ranks have every token in the
// vocabulary.
double exchange_seconds(Model& model, AllReduce& none, EmbeddingExchange& exchange,
                        std::span<const std::int32_t> windows, const Network::EmbeddingGradient& gradient,
                        bool all_tokens) {
  const TokenShape& shape = model.graph().tokens();
  Device& device = model.device();
  std::vector<std::int32_t> vocabulary(shape.vocabulary + 1);  // in a single window
  std::iota(vocabulary.begin(), vocabulary.end(), 0);
  std::vector<double> seconds;
  for (std::size_t pass = 0; pass <= kFewestPasses; ++pass) {
    const Mark begun = device.mark();
    none.wait(all_tokens ? exchange.send_tokens(vocabulary, {shape.vocabulary})
                         : exchange.send_tokens(windows, shape.form()));
    none.wait(exchange.send_rows(windows, shape.form(), gradient));
    exchange.add_rows(gradient.table);
    const Mark ended = device.mark();
    device.finish();
    if (pass > 0) seconds.push_back(device.seconds(ended) - device.seconds(begun));  // pass 0 touches the memory
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

std::vector<LayerProfile::Early> early_from_json(const nlohmann::json& json) {
  std::vector<LayerProfile::Early> found;
  for (const nlohmann::json& part : json)
    found.push_back(
        {valid_bytes(part.at("gradient_bytes").get<std::int64_t>(), "gradient_bytes"), milliseconds(part, "ms")});
  return found;
}

LayerProfile layer_from_json(const nlohmann::json& json) {
  LayerProfile layer{.name = json.at("name").get<std::string>(),
                     .forward_seconds = milliseconds(json, "forward_ms"),
                     .backward_seconds = milliseconds(json, "backward_ms"),
                     .gradient_bytes = gradient_bytes(json),
                     .early = early_from_json(json.value("early", nlohmann::json::array()))};
  LayerProfile::Early last{0, 0};
  const std::size_t all = std::reduce(layer.gradient_bytes.begin(), layer.gradient_bytes.end());
  for (const LayerProfile::Early& part : layer.early) {
    if (part.gradient_bytes < last.gradient_bytes || part.gradient_bytes > all || part.seconds < last.seconds ||
        part.seconds > layer.backward_seconds)
      fail("the early gradients of {} are not in order, or more or later than its own", layer.name);
    last = part;
  }
  return layer;
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
  for (const nlohmann::json& layer : json.at("layers")) profile.layers.push_back(layer_from_json(layer));
  if (json.contains("embedding")) profile.embedding = embedding_from_json(json["embedding"]);
  if (profile.embedding && profile.length == 0) fail("there is an embedding, but no length");
  if (profile.batch == 0 || profile.ranks == 0 || profile.layers.empty()) fail("batch, ranks or layers are 0");
  return profile;
}

}  // namespace

void LayerProfile::scale(double times) {
  forward_seconds *= times;
  backward_seconds *= times;
  for (Early& part : early) part.seconds *= times;
}

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
  pass(network, batch, [](std::size_t, const std::optional<Mark>&) {});
  const Mark ended = device.mark();
  const auto passes = static_cast<std::size_t>(
      std::clamp<double>(seconds / (device.seconds(ended) - device.seconds(begun)), kFewestPasses, kMostPasses));

  const SpansOfPass places(model.graph());
  TraceLane lane(passes * places.count);
  lane.record(true);
  network.record_to(&lane);
  const auto bytes = gradient_bytes(model);
  EarlyReports early(device, bytes);
  for (std::size_t i = 0; i < passes; ++i) {
    pass(network, batch, [&early](std::size_t gradients, const std::optional<Mark>&) { early.add(gradients); });
    resolve(device, lane, lane.spans().size());
    early.end_pass([&](std::size_t layer) { return lane.spans()[i * places.count + *places.backward[layer]].begin; });
  }
  network.record_to(nullptr);

  const auto median_of = [&](std::size_t place) {
    std::vector<double> found;
    for (std::size_t i = place; i < lane.spans().size(); i += places.count)
      found.push_back(lane.spans()[i].end - lane.spans()[i].begin);
    return median(std::move(found));
  };
  std::vector<LayerProfile> layers;
  for (std::size_t i = 0; i < bytes.size(); ++i)
    layers.push_back({model.graph().nodes()[i].name, median_of(i),
                      places.backward[i] ? median_of(*places.backward[i]) : 0, bytes[i], early.of(i)});
  return layers;
}

// The time is linear in the count of different tokens: it is measured with this rank's tokens, and with the whole
// vocabulary.
std::optional<EmbeddingProfile> profile_embedding(Model& model, const Batch& batch, AllReduce& none) {
  const auto& gradient = model.network(Mode::training, batch.size()).embedding_gradient();
  if (!gradient) return std::nullopt;
  const TokenShape& shape = model.graph().tokens();
  const auto windows = windows_in(batch.images);
  std::vector<std::int32_t> tokens;
  take_tokens(windows, shape.form(), shape.vocabulary, 0, tokens);
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
  for (const LayerProfile& layer : profile.layers) {
    nlohmann::json& written = json["layers"].emplace_back();
    written = {{"name", layer.name},
               {"forward_ms", 1e3 * layer.forward_seconds},
               {"backward_ms", 1e3 * layer.backward_seconds},
               {"gradient_bytes", layer.gradient_bytes}};
    for (const LayerProfile::Early& part : layer.early)
      written["early"].push_back({{"gradient_bytes", part.gradient_bytes}, {"ms", 1e3 * part.seconds}});
  }
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
