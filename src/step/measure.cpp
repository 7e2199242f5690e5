#include "src/step/measure.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/base/error.h"
#include "kernels/operations/loss.h"

namespace annulus {
namespace {

namespace measures {  // whose names occur elsewhere

using Data = DatasetInfo;
using Sums = EvaluationSums;

bool has_classes(const Data& data) {
  return data.labels != LabelKind::values;
}
bool has_several_classes(const Data& data) {
  return data.labels == LabelKind::several_classes;
}
bool has_many_classes(const Data& data) {
  return data.labels == LabelKind::one_class && data.classes.size() > SoftmaxCrossEntropy::kTop;
}
bool has_values(const Data& data) {
  return data.labels == LabelKind::values;
}
bool has_tokens(const Data& data) {
  return data.labels == LabelKind::tokens;
}
bool has_bytes(const Data& data) {
  return has_tokens(data) && data.prediction == Prediction::next && data.text_bytes > 0;
}
bool has_loss(const Data&) {
  return true;
}

double correct(const Sums& sums) {
  return std::round(sums.length * sums.losses.measure);
}
double among_largest(const Sums& sums) {
  return sums.losses.among_largest;
}
double f1(const Sums& sums) {
  return sums.classes->mean_of(&ClassResult::f1);
}
double recall(const Sums& sums) {
  return sums.classes->mean_of(&ClassResult::recall);
}
double mean_error(const Sums& sums) {
  return sums.losses.measure / sums.count;
}
double mean_loss(const Sums& sums) {
  return sums.length * sums.losses.loss / sums.count;
}
double perplexity(const Sums& sums) {
  return std::exp(mean_loss(sums));
}
double bits_per_byte(const Sums& sums) {
  const double bits = mean_loss(sums) / std::numbers::ln2;
  return bits * static_cast<double>(sums.data.tokens) / static_cast<double>(sums.data.text_bytes);
}

using enum MeasureInfo::Scale;
using enum MeasureInfo::Better;

// clang-format off
constexpr std::array<MeasureInfo, kMeasures.size()> kInfo{{
    {Measure::accuracy, "accuracy", "accuracy", "accuracy", "correct", "0.93", counted, higher, has_classes, correct},
    {Measure::top5, "top5", "top-5", "top5_accuracy", "top5", "0.99", counted, higher, has_many_classes, among_largest},
    {Measure::f1, "f1", "F1", "f1", "f1_bits", "0.8", share, higher, has_several_classes, f1},
    {Measure::recall, "recall", "recall", "recall", "recall_bits", "0.8", share, higher, has_several_classes, recall},
    {Measure::mae, "mae", "MAE", "mae", "mae_bits", "0.5", number, lower, has_values, mean_error},
    {Measure::perplexity, "perplexity", "perplexity", "perplexity", "perplexity_bits", "20", number, lower, has_tokens,
     perplexity},
    {Measure::bits_per_byte, "bits_per_byte", "bits per byte", "bits_per_byte", "bits_per_byte_bits", "1.2", number,
     lower, has_bytes, bits_per_byte},
    {Measure::loss, "loss", "loss", "loss", "loss_bits", "0.2", number, lower, has_loss, mean_loss},
}};
// clang-format on
static_assert(std::ranges::equal(kInfo, kMeasures, {}, &MeasureInfo::measure));

}  // namespace measures

using measures::kInfo;

}  // namespace

const MeasureInfo& info(Measure measure) {
  return kInfo[static_cast<std::size_t>(measure)];
}

std::vector<std::string> measure_names() {
  std::vector<std::string> names;
  for (const MeasureInfo& about : kInfo) names.emplace_back(about.name);
  return names;
}

Measure parse_measure(const std::string& name) {
  const auto* found = std::ranges::find(kInfo, name, &MeasureInfo::name);
  if (found == kInfo.end()) fail("'{}' is not one of {}", name, fmt::join(measure_names(), ", "));
  return found->measure;
}

std::string to_string(Measure measure) {
  return std::string(info(measure).name);
}

std::string to_string(Measure measure, double value) {
  const MeasureInfo& about = info(measure);
  return about.is_share() ? fmt::format("{} {:.2f} %", about.title, 100 * value)
                          : fmt::format("{} {:.4f}", about.title, value);
}

std::string example_goals() {
  std::vector<std::string> goals;
  for (const MeasureInfo& about : kInfo) goals.push_back(fmt::format("{}={}", about.name, about.goal));
  const std::string last = goals.back();
  goals.pop_back();
  return fmt::format("{} or {}", fmt::join(goals, ", "), last);
}

std::vector<Measure> measures_of(const DatasetInfo& data) {
  std::vector<Measure> measured;
  std::ranges::copy_if(kMeasures, std::back_inserter(measured),
                       [&](Measure measure) { return info(measure).is_measured(data); });
  return measured;
}

Measure step_measure(LabelKind labels) {
  return labels == LabelKind::values ? Measure::mae : Measure::accuracy;
}

}  // namespace annulus
