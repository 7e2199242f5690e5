#include "src/step/infer_views.h"

#include <algorithm>
#include <cmath>

#include "src/step/infer.h"

namespace annulus {
namespace {

// Returns how many logits rank above the label's: among equal logits the first ranks higher, and NaN above any number.
std::size_t rank_of(std::span<const float> logits, std::size_t label) {
  const float own = logits[label];
  return static_cast<std::size_t>(
      std::ranges::count_if(logits.first(label), [=](float logit) { return !(logit < own); }) +
      std::ranges::count_if(logits.subspan(label), [=](float logit) { return !(logit <= own); }));
}

}  // namespace

std::vector<float> infer_views(Model& model, const Batch& batch, const InputPlan& input, Activity& activity) {
  std::vector<float> means;
  std::vector<std::uint8_t> scratch;
  Batch seen = batch;
  for (const View& view : input.views) {
    std::ranges::copy(batch.images, seen.images.begin());
    for (std::size_t i = 0; i < batch.size(); ++i)
      show(view, std::span(seen.images).subspan(i * input.image_bytes(), input.image_bytes()), input.image,
           input.channels, scratch);
    infer(model, seen, input, activity, [&](const Network& network, const Range& samples) {
      if (!network.computes_loss()) return;
      const std::vector<float> logits = read_logits(model, network);
      const std::size_t classes = logits.size() / samples.size();
      means.resize(batch.size() * classes);
      for (std::size_t i = 0; i < logits.size(); ++i) means[samples.begin * classes + i] += view.weight * logits[i];
    });
  }
  return means;
}

LossSums class_sums(std::span<const float> logits, std::span<const std::int32_t> labels) {
  LossSums sums;
  const std::size_t classes = labels.empty() ? 0 : logits.size() / labels.size();
  for (std::size_t i = 0; i < labels.size(); ++i) {
    const auto own = logits.subspan(i * classes, classes);
    const auto label = static_cast<std::size_t>(labels[i]);
    const float largest = std::ranges::max(own);
    double total = 0;
    for (const float logit : own) total += std::exp(logit - largest);
    sums.loss += std::log(total) - static_cast<double>(own[label] - largest);
    const std::size_t rank = rank_of(own, label);
    sums.measure += rank == 0 ? 1 : 0;
    sums.among_largest += rank < SoftmaxCrossEntropy::kTop ? 1 : 0;
  }
  return sums;
}

}  // namespace annulus
