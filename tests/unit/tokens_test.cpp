// Operations of networks that read tokens, against plain loops in double precision.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "kernels/base/host_memory.h"
#include "models/network/model.h"
#include "models/zoo/zoo.h"
#include "src/step/embedding_exchange.h"
#include "tests/unit/error_text.h"
#include "tests/unit/operation_trial.h"
#include "tests/unit/small_network.h"

namespace annulus {
namespace {

using test::Operand;
using test::random_values;

// Windows of random tokens, some of which are missing.
std::vector<std::int32_t> random_windows(std::size_t batch, const WindowForm& form, std::size_t vocabulary,
                                         std::uint64_t seed) {
  std::vector<std::int32_t> tokens = test::random_labels(batch * form.size(), vocabulary, seed);
  for (std::size_t i = 3; i < tokens.size(); i += 11) tokens[i] = -1;
  return tokens;
}

Shape windows_shape(std::size_t batch, const WindowForm& form) {
  Shape shape = form.shape();
  shape.insert(shape.begin(), batch);
  return shape;
}

Buffer on_device(Device& device, const std::vector<std::int32_t>& values) {
  Buffer memory = device.allocate(values.size() * sizeof(std::int32_t));
  device.upload(std::as_bytes(std::span(values)), memory.view());
  return memory;
}

// An operation that reads windows, as its only or as its last input.
struct TokensTrial {
  TokensTrial(Device& on, const Operation& operation, const std::vector<std::int32_t>& windows, const Shape& shape,
              const std::vector<TensorSpec>& values = {}, Mode mode = Mode::training)
      : device(on), window(on_device(on, windows)) {
    std::vector<TensorSpec> specs = values;
    specs.push_back(device.plain(shape, DataType::i32));
    op = device.plan(operation, specs, mode, {});
    std::uint64_t seed = 40;
    const auto random = [&](const TensorSpec& spec) {
      return Operand(device, spec, random_values(elements(spec.shape), ++seed));
    };
    for (const TensorSpec& spec : values) {
      inputs.push_back(random(spec));
      input_gradients.push_back(random(spec));
    }
    for (const TensorSpec& spec : op->parameters()) {
      parameters.push_back(random(spec));
      parameter_gradients.push_back(random(spec));
    }
    output.push_back(random(op->output()));
    output.push_back(random(op->output()));  // its gradient
    Bindings bindings;
    for (const Operand& o : inputs) bindings.inputs.push_back(o.memory.view());
    bindings.inputs.push_back(window.view());
    bindings.output = output[0].memory.view();
    for (const Operand& o : parameters) bindings.parameters.push_back(o.memory.view());
    if (mode == Mode::training) {
      for (const Operand& o : parameter_gradients) bindings.parameter_gradients.push_back(o.memory.view());
      for (const Operand& o : input_gradients) bindings.input_gradients.push_back(o.memory.view());
      bindings.output_gradient = output[1].memory.view();
    }
    bindings.input_gradients.resize(specs.size());
    scratch = device.allocate(op->info().scratch_bytes);
    bindings.scratch = scratch.view();
    op->bind(bindings);
    op->forward();
    if (mode == Mode::training) op->backward(0.5f);
  }

  Device& device;
  Buffer window, scratch;
  std::unique_ptr<Op> op;
  std::vector<Operand> inputs, input_gradients, parameters, parameter_gradients, output;
};

void check_close(const std::vector<float>& ours, const std::vector<double>& expected) {
  const std::vector<double> values(ours.begin(), ours.end());
  CHECK(test::distance(values, expected) <= test::kTolerance * std::max(1e-3, test::largest(expected)));
}

}  // namespace

TEST_CASE("token embeddings, with missing and repeated tokens") {
  const auto device = test::make_device(GENERATE(1, 2));
  const Prediction prediction = GENERATE(Prediction::next, Prediction::masked, Prediction::label);
  for (const auto& [batch, length, vocabulary, width] :
       {std::array<std::size_t, 4>{1, 1, 1, 1}, {2, 5, 7, 3}, {3, 64, 11, 40}, {2, 300, 1000, 96}}) {
    const WindowForm form{length, prediction};
    const auto windows = random_windows(batch, form, vocabulary, 5);
    const TokensTrial trial(*device, TokenEmbedding{vocabulary, width}, windows, windows_shape(batch, form));
    const auto table = trial.parameters[0].read(), gradient = trial.output[1].read();
    std::vector<double> rows(batch * length * width), sums(vocabulary * width);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::size_t token = i / width;
      const std::int32_t id = windows[token / length * form.size() + token % length];
      if (id < 0) continue;
      const std::size_t at = static_cast<std::size_t>(id) * width + i % width;
      rows[i] = double{table[at]};
      sums[at] += double{gradient[i]};
    }
    CHECK(trial.output[0].read() == std::vector<float>(rows.begin(), rows.end()));
    check_close(trial.parameter_gradients[0].read(), sums);
  }
}

TEST_CASE("position embeddings") {
  const auto device = test::make_device(GENERATE(1, 2));
  for (const std::size_t positions : {5, 9}) {
    test::Trial trial(*device, PositionEmbedding{positions}, {device->values({3, 5, 20})});
    trial.op->forward();
    trial.op->backward(1);
    const auto input = trial.inputs[0].read(), table = trial.parameters[0].read();
    std::vector<double> sum, gradient(positions * 20);
    for (std::size_t i = 0; i < input.size(); ++i) {
      sum.push_back(double{input[i]} + double{table[i % 100]});
      gradient[i % 100] += trial.seeded[i];
    }
    check_close(trial.output[0].read(), sum);
    check_close(trial.parameter_gradients[0].read(), gradient);
    CHECK(trial.input_gradients[0].tensor().values == trial.seeded);
  }
}

TEST_CASE("the language-model head: loss, hits and gradients by blocks of tokens") {
  const auto device = test::make_device(GENERATE(1, 2));
  const auto [prediction, bias] = GENERATE(std::pair(Prediction::next, false), std::pair(Prediction::next, true),
                                           std::pair(Prediction::masked, true));
  for (const auto& [batch, length, vocabulary, width] :
       {std::array<std::size_t, 4>{1, 1, 1, 1}, {2, 5, 7, 3}, {3, 100, 50, 20}, {2, 700, 33, 24}, {1, 9, 3001, 8}}) {
    CAPTURE(batch, length, vocabulary, width);
    const WindowForm form{length, prediction};
    const auto windows = random_windows(batch, form, vocabulary, 6);
    const LanguageModelHead head{.vocabulary = vocabulary, .bias = bias};
    const std::vector<TensorSpec> hidden{device->values({batch, length, width})};
    const TokensTrial trial(*device, head, windows, windows_shape(batch, form), hidden);
    const TokensTrial inference(*device, head, windows, windows_shape(batch, form), hidden, Mode::inference);
    const auto states = trial.inputs[0].read(), weights = trial.parameters[1].read();
    const auto biases = bias ? trial.parameters[2].read() : std::vector<float>(vocabulary);
    double loss = 0, hits = 0, targets = 0;
    std::vector<double> to_states(states.size()), to_weights(weights.size()), to_biases(vocabulary);
    for (std::size_t token = 0; token < batch * length; ++token) {
      const std::int32_t target = windows[token / length * form.size() + token % length + form.predicted()];
      if (target < 0) continue;
      std::vector<double> logits(biases.begin(), biases.end());
      for (std::size_t c = 0; c < vocabulary; ++c)
        for (std::size_t i = 0; i < width; ++i)
          logits[c] += double{states[token * width + i]} * double{weights[c * width + i]};
      double total = 0;
      for (const double logit : logits) total += std::exp(logit);
      const auto label = static_cast<std::size_t>(target);
      loss += std::log(total) - logits[label];
      hits += std::ranges::max_element(logits) - logits.begin() == target;
      ++targets;
      for (std::size_t c = 0; c < vocabulary; ++c) {
        const double off = 0.5 / static_cast<double>(form.targets()) * (std::exp(logits[c]) / total - (c == label));
        to_biases[c] += off;
        for (std::size_t i = 0; i < width; ++i) {
          to_states[token * width + i] += off * double{weights[c * width + i]};
          to_weights[c * width + i] += off * double{states[token * width + i]};
        }
      }
    }
    const auto size = static_cast<double>(form.targets());
    const std::vector<double> sums{loss / size, hits / size, targets / size};
    check_close(trial.output[0].read(), sums);
    check_close(inference.output[0].read(), sums);
    check_close(trial.parameter_gradients[0].read(), {0.5 * sums[0], 0.5 * sums[1]});
    check_close(trial.input_gradients[0].read(), to_states);
    check_close(trial.parameter_gradients[1].read(), to_weights);
    if (bias) check_close(trial.parameter_gradients[2].read(), to_biases);
  }
}

TEST_CASE("of windows for masked tokens, 15 % are predicted, and at least one") {
  for (const auto& [length, masked] :
       {std::pair<std::size_t, std::size_t>{1, 1}, {3, 1}, {10, 2}, {128, 19}, {512, 77}})
    CHECK(masked_tokens(length) == masked);
  CHECK(window_form({4, 9}).length == 8);
  CHECK(window_form({4, 2, 9}).prediction == Prediction::masked);
  CHECK(window_form({4, 1, 9}).targets() == 0);
  CHECK(test::error_of([] {
          window_form({4, 3, 9});
        }) == "windows are {batch, length + 1} or {batch, 1 or 2, length}, not 4x3x9");
}

TEST_CASE("the gradient of a shared embedding is that of both of its uses") {
  const auto device = test::make_device(GENERATE(1, 2));
  constexpr std::size_t kBatch = 2, kLength = 6, kVocabulary = 9;
  const Graph graph = make_model("gpt-tiny", token_task({kLength, kVocabulary}));
  Model model(*device, graph, Mode::training, kBatch);
  Parameters& parameters = model.parameters();
  parameters.initialize(3);
  const auto windows = random_windows(kBatch, {kLength}, kVocabulary, 7);
  Network& network = model.network(Mode::training, kBatch);
  const auto run = [&] {
    test::load_windows(network, windows);
    network.forward();
    network.backward(1);
    return network.loss().loss;
  };
  run();
  const auto& gradient = network.embedding_gradient();
  REQUIRE(gradient.has_value());
  std::size_t named = 0;
  const Parameter* table = nullptr;
  for (const Parameter& p : parameters.all())
    if (p.name == "wte.weight") {
      table = &p;
      ++named;
    }
  REQUIRE(named == 1);
  std::vector<std::int32_t> embedded;
  take_tokens(windows, {kLength}, kVocabulary, 0, embedded);
  const Buffer index = on_device(*device, embedded);
  device->add_rows(gradient->rows, gradient->type, index.view(), gradient->width, gradient->table);
  const auto ours = test::read(*device, *table, parameters.gradient(*table));

  auto values = test::read(*device, *table, parameters.weight(*table));
  for (const std::size_t element : {0u, 70u, 200u, 333u, 575u}) {
    const float before = values[element];
    constexpr float kStep = 1e-2f;
    const auto loss_at = [&](float value) {
      values[element] = value;
      device->write(values, table->spec, parameters.weight(*table));
      parameters.weights_changed();
      return run();
    };
    const double slope = (loss_at(before + kStep) - loss_at(before - kStep)) / (2 * double{kStep});
    loss_at(before);
    CAPTURE(element, slope, ours[element]);
    CHECK(std::abs(slope - double{ours[element]}) <= 2e-3);
  }
}

TEST_CASE("gradients are final when they are reported, those of a large head in parts") {
  const auto device = test::make_device(GENERATE(1, 2));
  const bool bias = GENERATE(false, true);
  constexpr std::size_t kBatch = 2, kLength = 300, kVocabulary = 9000;  // more tokens than the head has in a block
  Graph graph(TokenShape{kLength, kVocabulary});
  Value x = graph.add("wte", TokenEmbedding{kVocabulary, 48}, {Graph::kWindow});
  for (const char* name : {"a", "b"}) x = graph.add(name, Linear{.units = 48}, {x});
  graph.add(Node{.name = "loss",
                 .operation = LanguageModelHead{.vocabulary = kVocabulary, .bias = bias},
                 .inputs = {x, Graph::kWindow},
                 .shared = {{"weight", "wte.weight"}}});
  Model model(*device, graph, Mode::training, kBatch);
  const Parameters& parameters = model.parameters();
  model.parameters().initialize(3);
  Network& network = model.network(Mode::training, kBatch);
  test::load_windows(network, random_windows(kBatch, {kLength}, kVocabulary, 7));
  network.forward();
  const auto gradients = [&](std::size_t count) {
    std::vector<float> values(count);
    device->download(parameters.gradients().slice(0, count * sizeof(float)), std::as_writable_bytes(std::span(values)));
    return values;
  };
  std::vector<std::size_t> ends;
  std::vector<std::vector<float>> reported;
  network.backward(1, [&](std::size_t count, const std::optional<Mark>&) {
    ends.push_back(count);
    reported.push_back(gradients(count));
  });
  CHECK(std::ranges::is_sorted(ends));
  CHECK(ends.back() == parameters.gradients().bytes / sizeof(float));
  const auto is_final = [&](const std::vector<float>& values) { return values == gradients(values.size()); };
  CHECK(std::ranges::all_of(reported, is_final));

  if (test::on_gpu()) return;  // reports the whole head at once
  const auto table = std::ranges::find(parameters.all(), std::string("wte.weight"), &Parameter::name);
  const std::size_t begin = table->offset / sizeof(float), width = table->bytes / sizeof(float) / kVocabulary;
  for (const std::size_t rows : {std::size_t{4096}, std::size_t{8192}, kVocabulary})
    CHECK(std::ranges::find(ends, begin + rows * width) != ends.end());
}

}  // namespace annulus
