#include "src/metrics/metrics_record.h"

#include <chrono>

namespace annulus {

std::string MetricsRecord::name(std::size_t value) {
  constexpr std::array kNames{"learning_rate",  "images_per_second", "tokens_per_second", "mfu",
                              "gradient_norm",  "noise_scale",       "lost_rank",         "recovery_seconds",
                              "repeated_steps", "staleness",         "step_seconds"};
  static_assert(kNames.size() == first_part_seconds - learning_rate);
  if (value == loss) return to_string(Measure::loss);
  if (value < learning_rate) return std::string(info(kMeasures[value - other_measures]).column);
  if (value < first_part_seconds) return kNames[value - learning_rate];
  return std::string(StepTimes::kNames[value - first_part_seconds]) + "_seconds";
}

std::size_t MetricsRecord::value_of(Measure measure) {
  return measure == Measure::loss ? loss : other_measures + static_cast<std::size_t>(measure);
}

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace annulus
