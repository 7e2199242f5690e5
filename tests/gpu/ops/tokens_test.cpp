// The operations of networks that read tokens, in every precision, against plain loops in double precision.

#include <catch2/catch.hpp>
#include <cmath>

#include "tests/gpu/ops/operation_trial.h"

namespace annulus {
namespace {

using test::check_against_cpu;
using test::Gpu;
using test::GpuTensor;
using test::Index;
using test::Reference;
using test::rounded;
using test::Trial;
using test::Values;
using test::Wanted;

// Windows of random tokens, some of which are missing.
Index random_windows(std::size_t batch, const WindowForm& form, std::size_t vocabulary, std::uint64_t seed) {
  Shape shape = form.shape();
  shape.insert(shape.begin(), batch);
  Index windows{shape, test::random_labels(elements(shape), vocabulary, seed)};
  for (std::size_t i = 3; i < windows.values.size(); i += 11) windows.values[i] = -1;
  return windows;
}

// Relative to the largest element, however small it is: gradients of a loss are.
void check_close(const GpuTensor& tensor, const std::vector<double>& expected, double allowed) {
  const Values values(expected.begin(), expected.end());
  CHECK(test::distance(tensor.read(), values) <= allowed * test::largest(values));
  CHECK(tensor.clean());
}

}  // namespace

TEST_CASE("on a GPU: token embeddings, with missing and repeated tokens") {
  Gpu gpu(GENERATE(from_range(std::begin(test::kPrecisions), std::end(test::kPrecisions))));
  const Prediction prediction = GENERATE(Prediction::next, Prediction::masked);
  for (const auto& [batch, length, vocabulary, width] :
       {std::array<std::size_t, 4>{1, 1, 1, 1}, {2, 5, 7, 3}, {3, 64, 11, 40}, {2, 150, 3, 300}, {2, 300, 1000, 96}}) {
    CAPTURE(to_string(gpu.context.precision), batch, length, vocabulary, width);
    const WindowForm form{length, prediction};
    const Index windows = random_windows(batch, form, vocabulary, 5);
    Trial trial(gpu, TokenEmbedding{vocabulary, width}, {}, Wanted::none, Mode::training, windows);
    trial.op->forward();
    trial.op->backward(1);
    Values rows(batch * length * width);
    Values sums(vocabulary * width);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::size_t token = i / width;
      const std::int32_t id = windows.values[token / length * form.size() + token % length];
      if (id < 0) continue;
      const std::size_t at = static_cast<std::size_t>(id) * width + i % width;
      rows[i] = trial.parameter_values[0][at];
      sums[at] += trial.gradient_values[i];
    }
    CHECK(trial.output[0].read() == rows);
    CHECK(trial.output[0].clean());
    CHECK(trial.parameter_gradients[0].read() == sums);  // added in the order of the tokens
    CHECK(trial.parameter_gradients[0].clean());
  }
}

TEST_CASE("on a GPU: position embeddings, of the first positions or of given ones") {
  Gpu gpu(GENERATE(from_range(std::begin(test::kPrecisions), std::end(test::kPrecisions))));
  const Wanted wanted = test::any_wanted();
  for (const std::size_t positions : {5, 9}) check_against_cpu(gpu, PositionEmbedding{positions}, {{3, 5, 20}}, wanted);

  const Index positions{{3}, {4, 0, 8}};
  Trial trial(gpu, PositionEmbedding{9}, {{3, 1, 20}}, Wanted::none, Mode::inference, positions);
  trial.op->forward();
  Values expected = trial.input_values[0];
  for (std::size_t i = 0; i < expected.size(); ++i)
    expected[i] += trial.parameter_values[0][static_cast<std::size_t>(positions.values[i / 20]) * 20 + i % 20];
  CHECK(trial.output[0].read() == rounded(expected, gpu.context.type()));
}

TEST_CASE("on a GPU: the language-model head: loss, hits and gradients by blocks of tokens") {
  Gpu gpu(GENERATE(from_range(std::begin(test::kPrecisions), std::end(test::kPrecisions))));
  const double tolerance = test::tolerance(gpu.context.precision);
  const bool masked = GENERATE(false, true);  // and with a bias
  for (const auto& [batch, length, vocabulary, width] :
       {std::array<std::size_t, 4>{1, 1, 1, 1}, {2, 5, 7, 3}, {3, 100, 50, 20}, {1, 1401, 33, 24}, {1, 9, 3001, 8}}) {
    CAPTURE(to_string(gpu.context.precision), batch, length, vocabulary, width, masked);
    const WindowForm form{length, masked ? Prediction::masked : Prediction::next};
    const LanguageModelHead head{.vocabulary = vocabulary, .bias = masked};
    const Index windows = random_windows(batch, form, vocabulary, 6);
    const std::vector<Shape> hidden{{batch, length, width}};
    Trial trial(gpu, head, hidden, Wanted::written, Mode::training, windows);
    Trial inference(gpu, head, hidden, Wanted::none, Mode::inference, windows);
    constexpr float kWeight = 0.5f;
    trial.op->forward();
    trial.op->backward(kWeight);
    inference.op->forward();
    const Values &states = trial.input_values[0], &weights = trial.parameter_values[1];
    double loss = 0, hits = 0, targets = 0;
    const Values biases = masked ? rounded(trial.parameter_values[2], gpu.context.type()) : Values(vocabulary);
    std::vector<double> to_states(states.size()), to_weights(weights.size()), to_biases(vocabulary);
    for (std::size_t token = 0; token < batch * length; ++token) {
      const std::int32_t target = windows.values[token / length * form.size() + token % length + form.predicted()];
      if (target < 0) continue;
      Values logits = biases;
      for (std::size_t c = 0; c < vocabulary; ++c)
        for (std::size_t i = 0; i < width; ++i) logits[c] += states[token * width + i] * weights[c * width + i];
      logits = rounded(logits, gpu.context.type());  // as they are stored
      double total = 0;
      for (const float logit : logits) total += std::exp(double{logit});
      const auto label = static_cast<std::size_t>(target);
      loss += std::log(total) - double{logits[label]};
      hits += std::ranges::max_element(logits) - logits.begin() == target;
      ++targets;
      for (std::size_t c = 0; c < vocabulary; ++c) {
        const double off =
            kWeight / static_cast<double>(form.targets()) * (std::exp(double{logits[c]}) / total - (c == label));
        to_biases[c] += off;
        for (std::size_t i = 0; i < width; ++i) {
          to_states[token * width + i] += gpu.scale() * off * double{weights[c * width + i]};
          to_weights[c * width + i] += off * double{states[token * width + i]};
        }
      }
    }
    const auto size = static_cast<double>(form.targets());
    const std::vector<double> sums{loss / size, hits / size, targets / size};
    check_close(trial.output[0], sums, 1e-5);
    check_close(inference.output[0], sums, 1e-5);
    check_close(trial.parameter_gradients[0], {kWeight * sums[0], kWeight * sums[1]}, 1e-5);
    check_close(trial.input_gradients[0], to_states, tolerance);
    check_close(trial.parameter_gradients[1], to_weights, tolerance);
    if (masked) check_close(trial.parameter_gradients[2], to_biases, tolerance);
  }
}

TEST_CASE("on a GPU: attention token by token gives that of whole sequences") {
  Gpu gpu(GENERATE(from_range(std::begin(test::kPrecisions), std::end(test::kPrecisions))));
  constexpr std::size_t kBatch = 2, kLength = 150, kHeads = 3, kWidth = kHeads * 5;
  const Shape whole{kBatch, kLength, 3 * kWidth}, one{kBatch, 1, 3 * kWidth};
  const Values tokens = rounded(test::random_values(elements(whole), 9), gpu.context.type());
  const Values expected = Reference(Attention{.heads = kHeads, .causal = true}, {whole}, {tokens}, {}).forward();
  Trial trial(gpu, CachedAttention{kHeads, kLength}, {one}, Wanted::none, Mode::inference, {{kBatch}, {0, 0}});
  for (std::size_t position = 0; position < kLength; ++position) {
    const auto at_position = [&](const Values& values) {
      const std::size_t width = values.size() / kBatch / kLength;
      Values all;
      for (std::size_t n = 0; n < kBatch; ++n) {
        const auto begin = values.begin() + static_cast<std::ptrdiff_t>((n * kLength + position) * width);
        all.insert(all.end(), begin, begin + static_cast<std::ptrdiff_t>(width));
      }
      return all;
    };
    const std::vector<std::int32_t> positions(kBatch, static_cast<std::int32_t>(position));
    trial.inputs[0].write(at_position(tokens));
    test::upload(gpu.context, positions.data(), positions.size() * sizeof positions[0], trial.indices);
    trial.op->forward();
    test::check_close(trial.output[0], trial.output[0].read(), at_position(expected));
  }
}

}  // namespace annulus
