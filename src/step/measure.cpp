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

bool has_classes(const DatasetInfo& data) {
  return data.labels != LabelKind::values;
}

double bits_per_byte(const EvaluationSums& sums) {
  return sums.mean_loss() / std::numbers::ln2 * static_cast<double>(sums.data.tokens) /
         static_cast<double>(sums.data.text_bytes);
}

// In the order of Measure.
constexpr std::array<MeasureInfo, kMeasures.size()> kInfo{
    {{.measure = Measure::accuracy,
      .name = "accuracy",
      .title = "accuracy",
      .column = "accuracy",
      .attribute = "correct",
      .goal = "0.93",
      .is_share = true,
      .is_counted = true,
      .less_is_better = false,
      .is_measured = has_classes,
      .of = [](const EvaluationSums& sums) { return std::round(sums.length * sums.losses.measure); }},
     {.measure = Measure::top5,
      .name = "top5",
      .title = "top-5",
      .column = "top5_accuracy",
      .attribute = "top5",
      .goal = "0.99",
      .is_share = true,
      .is_counted = true,
      .less_is_better = false,
      .is_measured =
          [](const DatasetInfo& data) {
            return data.labels == LabelKind::one_class && data.classes.size() > SoftmaxCrossEntropy::kTop;
          },
      .of = [](const EvaluationSums& sums) { return sums.losses.among_largest; }},
     {.measure = Measure::f1,
      .name = "f1",
      .title = "F1",
      .column = "f1",
      .attribute = "f1_bits",
      .goal = "0.8",
      .is_share = true,
      .is_counted = false,
      .less_is_better = false,
      .is_measured = [](const DatasetInfo& data) { return data.labels == LabelKind::several_classes; },
      .of = [](const EvaluationSums& sums) { return sums.classes->macro_f1(); }},
     {.measure = Measure::mae,
      .name = "mae",
      .title = "MAE",
      .column = "mae",
      .attribute = "mae_bits",
      .goal = "0.5",
      .is_share = false,
      .is_counted = false,
      .less_is_better = true,
      .is_measured = [](const DatasetInfo& data) { return data.labels == LabelKind::values; },
      .of = [](const EvaluationSums& sums) { return sums.losses.measure / sums.count; }},
     {.measure = Measure::perplexity,
      .name = "perplexity",
      .title = "perplexity",
      .column = "perplexity",
      .attribute = "perplexity_bits",
      .goal = "20",
      .is_share = false,
      .is_counted = false,
      .less_is_better = true,
      .is_measured = [](const DatasetInfo& data) { return data.labels == LabelKind::tokens; },
      .of = [](const EvaluationSums& sums) { return std::exp(sums.mean_loss()); }},
     {.measure = Measure::bits_per_byte,
      .name = "bits_per_byte",
      .title = "bits per byte",
      .column = "bits_per_byte",
      .attribute = "bits_per_byte_bits",
      .goal = "1.2",
      .is_share = false,
      .is_counted = false,
      .less_is_better = true,
      .is_measured = [](const DatasetInfo& data) { return data.labels == LabelKind::tokens && data.text_bytes > 0; },
      .of = bits_per_byte},
     {.measure = Measure::loss,
      .name = "loss",
      .title = "loss",
      .column = "loss",
      .attribute = "loss_bits",
      .goal = "0.2",
      .is_share = false,
      .is_counted = false,
      .less_is_better = true,
      .is_measured = [](const DatasetInfo&) { return true; },
      .of = [](const EvaluationSums& sums) { return sums.mean_loss(); }}}};
static_assert(std::ranges::equal(kInfo, kMeasures, {}, &MeasureInfo::measure));

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
  return about.is_share ? fmt::format("{} {:.2f} %", about.title, 100 * value)
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
