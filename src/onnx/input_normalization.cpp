#include "src/onnx/input_normalization.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>

#include "src/onnx/file.h"

namespace annulus {
namespace {

constexpr std::size_t kMostChannels = 4096;
constexpr int kMostSteps = 100;  // from the images to a value, for is_scaled_pixels()

// Values that are alpha x + beta for pixels x, for each channel.
struct Scaled {
  std::optional<std::size_t> axis;  // the channels' dimension; none: all elements belong to the only channel
  std::vector<double> alpha, beta;
  std::optional<double> least{}, most{};  // limits for x, if it is clipped

  std::size_t channels() const { return alpha.size(); }
};

using Lookup = std::function<const Scaled*(Value value)>;

Scaled of_image_input(const ImageInput& input) {
  Scaled scaled{1, {}, {}};
  for (std::size_t c = 0; c < input.mean.size(); ++c) {
    scaled.alpha.push_back(1.0 / input.stddev[c]);
    scaled.beta.push_back(-1.0 * input.mean[c] / input.stddev[c]);
  }
  return scaled;
}

Scaled linear(Scaled x, double alpha, double beta) {
  for (double& value : x.alpha) value *= alpha;
  for (double& value : x.beta) value = alpha * value + beta;
  return x;
}

// Merges the channels into a single channel, with mean alpha and beta.
Scaled merged(Scaled x) {
  const auto mean = [](const std::vector<double>& values) {
    double sum = 0;
    for (const double value : values) sum += value;
    return sum / static_cast<double>(values.size());
  };
  x.alpha = {mean(x.alpha)};
  x.beta = {mean(x.beta)};
  x.axis.reset();
  return x;
}

Scaled clipped(Scaled x, double least, double most) {
  constexpr double kNone = std::numeric_limits<float>::max();
  const Scaled all = merged(x);
  const double alpha = all.alpha[0], beta = all.beta[0];
  if (!(alpha > 0)) return x;
  if (least > -kNone) x.least = (least - beta) / alpha;
  if (most < kNone) x.most = (most - beta) / alpha;
  return x;
}

// Returns the mean of a constant's numbers for each channel in values with `rank` dimensions; a single number if it has
// one for all.
std::vector<double> per_channel(const Constant& constant, const Scaled& x, std::size_t rank) {
  const Shape& shape = constant.shape;
  const std::size_t missing = rank - std::min(rank, shape.size());
  const bool by_channel = x.axis && *x.axis >= missing && *x.axis - missing < shape.size();
  const std::size_t channels = by_channel ? shape[*x.axis - missing] : 1;
  std::size_t inner = 1;
  for (std::size_t i = by_channel ? *x.axis - missing + 1 : shape.size(); i < shape.size(); ++i) inner *= shape[i];
  std::vector<double> sums(std::min(channels, kMostChannels + 1));
  if (sums.size() != channels || constant.values.empty()) return {0};
  for (std::size_t i = 0; i < constant.values.size(); ++i) sums[i / inner % channels] += constant.values[i];
  for (double& sum : sums) sum *= static_cast<double>(channels) / static_cast<double>(constant.values.size());
  return sums;
}

// x op constant, or constant op x.
std::optional<Scaled> combined(Scaled x, Arithmetic::Operator op, const std::vector<double>& numbers, bool first) {
  using enum Arithmetic::Operator;
  if (first && op == quotient) return std::nullopt;
  if (op == greater || op == at_least || op == equal || op == choice) return std::nullopt;
  if (op == maximum || op == minimum) return x;
  if (x.channels() == 1) {
    x.alpha.resize(numbers.size(), x.alpha[0]);
    x.beta.resize(numbers.size(), x.beta[0]);
  }
  for (std::size_t c = 0; c < x.channels(); ++c) {
    const double number = numbers.size() == 1 ? numbers[0] : numbers.at(c);
    const double factor = op == product ? number : op == quotient ? 1 / number : first && op == difference ? -1 : 1;
    x.alpha[c] *= factor;
    x.beta[c] *= factor;
    if (op == sum) x.beta[c] += number;
    if (op == difference) x.beta[c] += first ? number : -number;
  }
  return x;
}

// Returns a constant, also if it is repeated or a number.
const Constant* constant(const GraphBuilder& builder, Value value) {
  const bool number = builder.computed_by<Reshape>(value) != nullptr && builder.shape(value, 1).empty();
  if (number || builder.computed_by<Expand>(value) != nullptr) value = builder.layer(value).inputs[0];
  return builder.computed_by<Constant>(value);
}

std::optional<Scaled> with_constant(const GraphBuilder& builder, const GraphBuilder::Layer& layer,
                                    Arithmetic::Operator op, const Lookup& lookup) {
  for (const std::size_t i : {0, 1}) {
    const Scaled* x = lookup(layer.inputs[i]);
    const Constant* other = constant(builder, layer.inputs[1 - i]);
    if (x == nullptr || other == nullptr) continue;
    const auto numbers = per_channel(*other, *x, layer.of_one.size());
    if (numbers.size() != 1 && x->channels() != 1 && numbers.size() != x->channels()) return std::nullopt;
    return combined(*x, op, numbers, i == 1);
  }
  return std::nullopt;
}

Scaled picked(Scaled x, std::size_t axis, const std::vector<std::size_t>& channels) {
  if (x.axis != axis) return x;
  const Scaled from = std::exchange(x, {x.axis, {}, {}, x.least, x.most});
  for (const std::size_t c : channels) {
    x.alpha.push_back(from.alpha.at(c));
    x.beta.push_back(from.beta.at(c));
  }
  return x;
}

std::optional<Scaled> concatenated(const GraphBuilder& builder, const GraphBuilder::Layer& layer, std::size_t axis,
                                   const Lookup& lookup) {
  Scaled all{axis, {}, {}};
  for (const Value input : layer.inputs) {
    const Scaled* part = lookup(input);
    if (part == nullptr) return std::nullopt;
    if (part->axis && part->axis != axis) return *part;  // parts of other dimensions are scaled equally
    const std::size_t extent = part->axis ? 1 : builder.shape(input, 1)[axis];
    if (all.channels() + extent * part->channels() > kMostChannels) return std::nullopt;
    for (std::size_t i = 0; i < extent; ++i) {
      all.alpha.insert(all.alpha.end(), part->alpha.begin(), part->alpha.end());
      all.beta.insert(all.beta.end(), part->beta.begin(), part->beta.end());
    }
    if (part->least) all.least = part->least;
    if (part->most) all.most = part->most;
  }
  return all;
}

// The channels stay a dimension if as many elements are before it, else they are merged.
Scaled with_shape(Scaled x, const Shape& from, const Shape& to) {
  if (!x.axis) return x;
  std::size_t before = 1, product = 1;
  for (std::size_t i = 0; i < *x.axis; ++i) before *= from[i];
  for (std::size_t i = 0; i < to.size(); product *= to[i++])
    if (product == before && to[i] == x.channels()) {
      x.axis = i;
      return x;
    }
  return merged(x);
}

// Channels that are added, as weighted ones are to a gray image.
std::optional<Scaled> added(const Scaled& a, const Scaled& b) {
  if (a.channels() != b.channels() || a.axis != b.axis) return std::nullopt;
  Scaled all = a;
  for (std::size_t c = 0; c < all.channels(); ++c) {
    all.alpha[c] += b.alpha[c];
    all.beta[c] += b.beta[c];
  }
  return all;
}

// Finds what a layer computes from the pixels; nothing if it does more than scaling, limiting and rearranging them.
class Follow {
 public:
  Follow(const GraphBuilder& builder, const GraphBuilder::Layer& layer, const Lookup& lookup)
      : builder_(builder), layer_(layer), lookup_(lookup) {}

  std::optional<Scaled> run() const {
    const auto* operation = std::get_if<Operation>(&layer_.operation);
    if (operation == nullptr) return std::nullopt;
    return std::visit(*this, *operation);
  }

  template <class Other>
  std::optional<Scaled> operator()(const Other&) const {
    return std::nullopt;
  }
  std::optional<Scaled> operator()(const ImageInput& input) const { return of_image_input(input); }
  std::optional<Scaled> operator()(const Arithmetic& arithmetic) const { return combination(arithmetic.op); }
  std::optional<Scaled> operator()(const Add&) const { return combination(Arithmetic::Operator::sum); }
  std::optional<Scaled> operator()(const Concat& concat) const {
    return concatenated(builder_, layer_, concat.axis, lookup_);
  }
  std::optional<Scaled> operator()(const Activation& activation) const {
    const bool is_linear = activation.function == Activation::Function::linear;
    if (!is_linear && activation.function != Activation::Function::clip) return std::nullopt;
    return changed([&](const Scaled& x) {
      return is_linear ? linear(x, activation.alpha, activation.beta) : clipped(x, activation.alpha, activation.beta);
    });
  }
  std::optional<Scaled> operator()(const Slice& slice) const {
    return changed([&](const Scaled& x) {
      std::vector<std::size_t> indices;
      for (std::size_t i = 0; x.axis == slice.axis && i < slice.size; ++i) indices.push_back(slice.begin + i);
      return picked(x, slice.axis, indices);
    });
  }
  std::optional<Scaled> operator()(const Gather& gather) const {
    return changed([&](const Scaled& x) { return picked(x, gather.axis, gather.indices); });
  }
  std::optional<Scaled> operator()(const Reshape&) const {
    return changed([&](const Scaled& x) { return with_shape(x, builder_.shape(layer_.inputs[0], 1), layer_.of_one); });
  }
  std::optional<Scaled> operator()(const Transpose& transpose) const {
    return changed([&](Scaled x) {
      if (x.axis)
        x.axis = static_cast<std::size_t>(std::ranges::find(transpose.order, *x.axis) - transpose.order.begin());
      return x;
    });
  }
  std::optional<Scaled> operator()(const Pad&) const { return same(); }
  std::optional<Scaled> operator()(const Resize&) const { return same(); }
  std::optional<Scaled> operator()(const AveragePool&) const { return same(); }
  std::optional<Scaled> operator()(const AdaptiveAveragePool&) const { return same(); }
  std::optional<Scaled> operator()(const MaxPool&) const { return same(); }
  std::optional<Scaled> operator()(const Mean& mean) const {  // a gray image
    const Scaled* x = lookup_(layer_.inputs[0]);
    if (x == nullptr || !x->axis || mean.axes != std::vector{*x->axis}) return std::nullopt;
    return merged(*x);
  }

 private:
  template <class Change>
  std::optional<Scaled> changed(const Change& change) const {
    const Scaled* x = lookup_(layer_.inputs[0]);
    return x == nullptr ? std::nullopt : std::optional<Scaled>(change(*x));
  }
  std::optional<Scaled> combination(Arithmetic::Operator op) const {
    const Scaled *a = lookup_(layer_.inputs[0]), *b = lookup_(layer_.inputs[1]);
    if (a != nullptr && b != nullptr) return op == Arithmetic::Operator::sum ? added(*a, *b) : std::nullopt;
    return with_constant(builder_, layer_, op, lookup_);
  }
  std::optional<Scaled> same() const {
    return changed([](const Scaled& x) { return x; });
  }

  const GraphBuilder& builder_;
  const GraphBuilder::Layer& layer_;
  const Lookup& lookup_;
};

// The mean and std in (x - mean) / std for pixels x, for each channel.
struct Statistics {
  std::vector<double> mean, stddev;
};

std::string text(const std::vector<double>& values) {
  const bool equal = std::ranges::all_of(values, [&](double value) { return std::fabs(value - values[0]) < 1e-6; });
  std::string all;
  for (std::size_t i = 0; i < (equal ? 1 : std::min<std::size_t>(values.size(), 4)); ++i)
    all += fmt::format("{}{:.4g}", i > 0 ? " " : "", std::fabs(values[i]) < 1e-7 ? 0 : values[i]);
  return all;
}

std::string given(Pixels pixels) {
  switch (pixels) {
    case Pixels::to_one:
      return "it is given pixels of 0 to 1";
    case Pixels::to_255:
      return "it is given pixels of 0 to 255";
    default:
      return "it is given pixels that are normalized with the mean and std of the data";
  }
}

PixelDecision decided(const std::string& how, Pixels pixels) {
  return {pixels, fmt::format("{}: {} (--pixels overrides this)", how, given(pixels))};
}

// Decides by limits: 0 and 1, or 0 and 255.
std::optional<PixelDecision> by_limits(const Scaled& x) {
  const auto near = [](const std::optional<double>& limit, double value) {
    return limit && std::fabs(*limit - value) < 1e-3 * std::max(1.0, value);
  };
  if (!near(x.least, 0) || (!near(x.most, 1) && !near(x.most, 255))) return std::nullopt;
  const bool one = near(x.most, 1);
  return decided(fmt::format("the network limits images to 0..{}", one ? "1" : "255"),
                 one ? Pixels::to_one : Pixels::to_255);
}

std::optional<PixelDecision> by_scale(const Scaled& x) {
  Statistics own;
  bool same = true;
  for (std::size_t c = 0; c < x.channels(); ++c) {
    same = same && std::fabs(x.alpha[c] - 1) < 2e-3 && std::fabs(x.beta[c]) < 2e-3;  // gray's weights add up to 0.9999
    own.mean.push_back(-x.beta[c] / x.alpha[c]);
    own.stddev.push_back(std::fabs(1 / x.alpha[c]));
  }
  if (same || own.mean.empty()) return std::nullopt;
  const auto [least, most] = std::ranges::minmax(own.mean);
  const auto [narrow, wide] = std::ranges::minmax(own.stddev);
  const std::string how = fmt::format("mean {}, std {}", text(own.mean), text(own.stddev));
  constexpr double kSlack = 1e-3;
  if (least >= -kSlack && most <= 1 + kSlack && wide <= 1 + kSlack)
    return decided(fmt::format("the network normalizes images itself ({})", how), Pixels::to_one);
  if (least >= -255 * kSlack && most <= 256 && (most > 2 || narrow >= 20))
    return decided(fmt::format("the network normalizes images itself ({})", how), Pixels::to_255);
  return decided(fmt::format("the network scales images ({}), which fits neither 0..1 nor 0..255", how),
                 Pixels::normalized);
}

// Decides by a first batch normalization's statistics, which describe the pixels that it was trained on.
std::optional<PixelDecision> by_batch_norm(const GraphBuilder::Layer& layer) {
  Statistics own;
  for (const std::size_t i : {2, 3}) {
    const Stored& stored = layer.stored.at(i);
    if (stored.tensor != nullptr && !OnnxFile::stripped(*stored.tensor)) {
      const HostTensor values = read_tensor(*stored.tensor);
      (i == 2 ? own.mean : own.stddev) = values.reals;
    } else if (stored.computed != nullptr) {
      (i == 2 ? own.mean : own.stddev) = stored.computed->reals;
    }
  }
  if (own.mean.empty() || own.stddev.size() != own.mean.size()) return std::nullopt;
  for (double& value : own.stddev) value = std::sqrt(value);
  const auto within = [](const std::vector<double>& values, double least, double most) {
    return std::ranges::all_of(values, [&](double value) { return value >= least && value <= most; });
  };
  const std::string how = fmt::format("the statistics of the network's first batch normalization (mean {}, std {})",
                                      text(own.mean), text(own.stddev));
  if (within(own.mean, 0.02, 0.98) && within(own.stddev, 0.01, 0.45)) return decided(how, Pixels::to_one);
  if (within(own.mean, 5, 250) && within(own.stddev, 5, 130)) return decided(how, Pixels::to_255);
  return std::nullopt;
}

}  // namespace

PixelDecision decide_pixels(const GraphBuilder& builder, Value logits) {
  const auto& layers = builder.layers();
  std::vector<std::optional<Scaled>> found(layers.size());
  const Lookup lookup = [&](Value value) -> const Scaled* {
    if (!Graph::has_node(value) || !found[value - Graph::output(0)]) return nullptr;
    return &*found[value - Graph::output(0)];
  };
  const std::vector<bool> used = builder.used_layers(logits);
  PixelDecision decision;
  const auto decide = [&](const std::optional<PixelDecision>& next) {
    const bool first = decision.reason.empty();
    const bool clearer = next && decision.pixels == Pixels::normalized && next->pixels != Pixels::normalized;
    if (next && (first || clearer)) decision = *next;
  };
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (!used[i]) continue;
    const GraphBuilder::Layer& layer = layers[i];
    if ((found[i] = Follow(builder, layer, lookup).run())) continue;
    for (const Value input : layer.inputs) {
      const Scaled* x = lookup(input);
      if (x == nullptr) continue;
      const auto limits = by_limits(*x), scale = by_scale(*x);
      decide(limits ? limits : scale);
      const auto* operation = std::get_if<Operation>(&layer.operation);
      if (!limits && !scale && operation != nullptr && std::holds_alternative<BatchNorm>(*operation))
        decide(by_batch_norm(layer));
    }
  }
  return decision;
}

PixelDecision decided_by_user(Pixels pixels) {
  return {pixels, fmt::format("--pixels {} of the network: {}", name(pixels), given(pixels))};
}

void set_pixels(GraphBuilder& builder, Pixels pixels, const std::vector<float>& mean,
                const std::vector<float>& stddev) {
  for (std::size_t i = 0; i < builder.layers().size(); ++i) {
    auto* operation = std::get_if<Operation>(&builder.layer(Graph::output(i)).operation);
    auto* input = operation != nullptr ? std::get_if<ImageInput>(operation) : nullptr;
    for (std::size_t c = 0; input != nullptr && c < input->mean.size(); ++c) {
      const float shift = pixels == Pixels::normalized ? mean[c] : 0;
      const float scale = pixels == Pixels::normalized ? stddev[c] : pixels == Pixels::to_255 ? 1.0f / 255 : 1;
      input->mean[c] = shift + input->mean[c] * scale;
      input->stddev[c] *= scale;
    }
  }
}

bool is_scaled_pixels(const GraphBuilder& builder, Value value) {
  std::map<Value, std::optional<Scaled>> found;
  int steps = 0;
  const Lookup lookup = [&](Value of) -> const Scaled* {
    if (!Graph::has_node(of)) return nullptr;
    auto [at, added] = found.try_emplace(of);
    if (added && steps++ < kMostSteps) {
      auto scaled = Follow(builder, builder.layer(of), lookup).run();
      at->second = std::move(scaled);
    }
    return at->second ? &*at->second : nullptr;
  };
  return lookup(value) != nullptr;
}

}  // namespace annulus
