#include "src/apply/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/base/random.h"
#include "models/graph/cost.h"
#include "models/network/decoding.h"
#include "src/apply/trained_network.h"
#include "src/checkpoint/restore.h"
#include "src/io/printable.h"
#include "src/io/terminal.h"
#include "src/io/utf8.h"
#include "src/job/threads.h"
#include "src/step/infer.h"
#include "src/text/tokenizer.h"

namespace annulus {
namespace {

// A text that the network has read up to the last token.
class TextReader {
 public:
  TextReader(const TrainedNetwork& trained, Device& device)
      : vocabulary_(trained.checkpoint().data.vocabulary),
        positions_(positions_of(trained.graph)),
        model_(device, decoding_graph(trained.graph, positions_), Mode::inference, 1) {
    restore_parameters(trained.file, model_, trained.averaged);
  }

  // Returns the next token's logits. If the text is longer than the network's positions, the first half is forgotten:
  // the network reads the rest again.
  std::vector<float> read(std::int32_t token) {
    if (text_.size() == positions_) {
      const std::vector<std::int32_t> rest(text_.end() - static_cast<std::ptrdiff_t>(positions_ / 2), text_.end());
      text_.clear();
      for (const std::int32_t earlier : rest) step(earlier);
    }
    step(token);
    auto logits = read_value(model_, model_.network(Mode::inference, 1), model_.graph().values() - 1);
    logits.resize(std::min(logits.size(), vocabulary_));
    return logits;
  }

 private:
  void step(std::int32_t token) {
    const std::array<std::int32_t, 2> window{token, -1};
    const auto bytes = std::as_bytes(std::span(window));
    const std::array<std::int32_t, 1> position{static_cast<std::int32_t>(text_.size())};
    Network& network = model_.network(Mode::inference, 1);
    network.load({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()}, {.classes = position});
    network.forward();
    text_.push_back(token);
  }

  std::size_t vocabulary_;  // the tokenizer's, if the network has more
  std::size_t positions_;
  Model model_;
  std::vector<std::int32_t> text_;
};

// Returns a token drawn from softmax(logits / temperature), among the `top_k` likeliest.
std::int32_t draw(const std::vector<float>& logits, const GenerateOptions& options, std::uint64_t number) {
  std::vector<std::int32_t> tokens(logits.size());
  std::iota(tokens.begin(), tokens.end(), 0);
  const auto logit = [&](std::int32_t token) { return logits[static_cast<std::size_t>(token)]; };
  const std::size_t count = options.temperature == 0 ? 1
                            : options.top_k == 0     ? tokens.size()
                                                     : std::min(options.top_k, tokens.size());
  std::ranges::partial_sort(tokens, tokens.begin() + static_cast<std::ptrdiff_t>(count),
                            [&](std::int32_t a, std::int32_t b) { return logit(a) > logit(b); });
  if (count == 1) return tokens.front();
  std::vector<double> sums;
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i)
    sums.push_back(sum += std::exp((double{logit(tokens[i])} - double{logit(tokens[0])}) / options.temperature));
  const double wanted = sum * static_cast<double>(mix(options.seed, number) >> 11) * 0x1p-53;
  const auto chosen = std::ranges::upper_bound(sums, wanted) - sums.begin();
  return tokens[std::min(static_cast<std::size_t>(chosen), count - 1)];
}

// Returns how many bytes come before a character at the end that has only begun.
std::size_t complete(const std::string& text) {
  for (std::size_t back = 1; back <= std::min<std::size_t>(3, text.size()); ++back)
    if (first_character(std::string_view(text).substr(text.size() - back)).is_incomplete) return text.size() - back;
  return text.size();
}

// Prints text unchanged, except for control characters on a terminal. Holds a character back until it is complete.
class TextOutput {
 public:
  void add(std::string_view text) {
    pending_ += text;
    print(complete(pending_));
  }
  void finish() { print(pending_.size()); }

 private:
  void print(std::size_t bytes) {
    const std::string text = pending_.substr(0, bytes);
    fmt::print("{}", is_terminal(stdout) ? printable_lines(text) : text);
    std::fflush(stdout);
    pending_.erase(0, bytes);
  }

  std::string pending_;
};

// Returns the options with as many threads as the network keeps busy: a token reads all weights once, and in a small
// network threads wait for each other longer than they read.
DeviceOptions device_for(const GenerateOptions& options, const Graph& graph) {
  constexpr std::size_t kBytesPerThread = std::size_t{32} << 20;
  DeviceOptions device = options.device;
  const std::size_t useful = std::max<std::size_t>(total_cost(graph).gradient_bytes() / kBytesPerThread, 1);
  if (device.threads == 0 && std::getenv("OMP_NUM_THREADS") == nullptr)
    device.threads = static_cast<int>(std::min<std::size_t>(useful, static_cast<std::size_t>(choose_threads(0).count)));
  return device;
}

}  // namespace

void generate(const World& world, const GenerateOptions& options) {
  if (world.size() > 1) fail("generate runs as a single rank: start it without mpirun, or with -np 1");
  const TrainedNetwork trained = read_trained_network(options.checkpoint, options.weights, 1);
  if (!trained.graph.reads_tokens())
    fail("{}: {} was trained on images: generate needs a model of text", trained.file.path().string(),
         trained.checkpoint().model);
  if (trained.graph.tokens().prediction != Prediction::next)
    fail("{}: {} was trained for {}: generate needs a model that predicts the next token", trained.file.path().string(),
         trained.checkpoint().model, trained.graph.predicts_tokens() ? "masked tokens" : "texts with labels");
  if (trained.checkpoint().data.tokenizer.empty())
    fail("{}: its data had no tokenizer, so its tokens have no text", trained.file.path().string());
  const Tokenizer tokenizer = Tokenizer::parse(trained.checkpoint().data.tokenizer);
  const auto device = open_device(world, device_for(options, trained.graph));
  TextReader reader(trained, *device);

  // Texts begin after another text's end.
  std::vector<std::int32_t> prompt{tokenizer.end_of_text()};
  const std::vector<std::int32_t> given = tokenizer.encode(options.prompt);
  prompt.insert(prompt.end(), given.begin(), given.end());
  std::vector<float> logits;
  for (const std::int32_t token : prompt) logits = reader.read(token);
  TextOutput output;
  output.add(options.prompt);
  const double begun = now_seconds();
  std::size_t count = 0;
  while (count < options.tokens) {
    const std::int32_t token = draw(logits, options, count++);
    if (token == tokenizer.end_of_text()) break;
    output.add(tokenizer.bytes_of(token));
    if (count < options.tokens) logits = reader.read(token);
  }
  output.finish();
  fmt::print("\n");
  std::fflush(stdout);
  fmt::print(stderr, "{} token{}, {:.0f} tokens/s\n", count, count == 1 ? "" : "s",
             static_cast<double>(count) / (now_seconds() - begun));
}

}  // namespace annulus
