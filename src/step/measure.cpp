#include "src/step/measure.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "kernels/base/error.h"
#include "kernels/operations/loss.h"

namespace annulus {
namespace {

// In the order of Measure.
constexpr std::array<MeasureInfo, kMeasures.size()> kInfo{{{"f1", "F1", true, false},
                                                           {"mae", "MAE", false, true},
                                                           {"perplexity", "perplexity", false, true},
                                                           {"bits_per_byte", "bits per byte", false, true},
                                                           {"accuracy", "accuracy", true, false},
                                                           {"top5", "top-5", true, false},
                                                           {"loss", "loss", false, true}}};

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
  return static_cast<Measure>(found - kInfo.begin());
}

std::string to_string(Measure measure) {
  return std::string(info(measure).name);
}

std::string to_string(Measure measure, double value) {
  const MeasureInfo& about = info(measure);
  return about.is_share ? fmt::format("{} {:.2f} %", about.title, 100 * value)
                        : fmt::format("{} {:.4f}", about.title, value);
}

std::vector<Measure> measures_of(const DatasetInfo& data) {
  using enum Measure;
  if (data.labels == LabelKind::values) return {mae, loss};
  if (data.labels == LabelKind::tokens && data.text_bytes > 0) return {perplexity, bits_per_byte, accuracy, loss};
  if (data.labels == LabelKind::tokens) return {perplexity, accuracy, loss};
  if (data.labels == LabelKind::several_classes) return {f1, accuracy, loss};
  if (data.classes.size() > SoftmaxCrossEntropy::kTop) return {accuracy, top5, loss};
  return {accuracy, loss};
}

Measure step_measure(LabelKind labels) {
  return labels == LabelKind::values ? Measure::mae : Measure::accuracy;
}

}  // namespace annulus
