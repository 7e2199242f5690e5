#include "src/metrics/metrics_record.h"

#include <chrono>

namespace annulus {

std::string MetricsRecord::name(std::size_t value) {
  constexpr std::array<const char*, first_part_seconds> kNames{"loss",
                                                               "accuracy",
                                                               "top5_accuracy",
                                                               "f1",
                                                               "mae",
                                                               "perplexity",
                                                               "bits_per_byte",
                                                               "learning_rate",
                                                               "images_per_second",
                                                               "tokens_per_second",
                                                               "mfu",
                                                               "gradient_norm",
                                                               "noise_scale",
                                                               "lost_rank",
                                                               "recovery_seconds",
                                                               "repeated_steps",
                                                               "staleness",
                                                               "step_seconds"};
  if (value < first_part_seconds) return kNames[value];
  return std::string(StepTimes::kNames[value - first_part_seconds]) + "_seconds";
}

MetricsRecord::Value MetricsRecord::value_of(Measure measure) {
  switch (measure) {
    case Measure::f1:
      return f1;
    case Measure::mae:
      return mae;
    case Measure::perplexity:
      return perplexity;
    case Measure::bits_per_byte:
      return bits_per_byte;
    case Measure::accuracy:
      return accuracy;
    case Measure::top5:
      return top5_accuracy;
    case Measure::loss:
      break;
  }
  return loss;
}

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace annulus
