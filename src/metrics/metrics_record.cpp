#include "src/metrics/metrics_record.h"

#include <chrono>

namespace annulus {

std::string MetricsRecord::name(std::size_t value) {
  constexpr std::array<const char*, first_part_seconds> kNames{
      "loss", "accuracy", "top5_accuracy", "learning_rate", "images_per_second", "gradient_norm", "step_seconds"};
  if (value < first_part_seconds) return kNames[value];
  return std::string(StepTimes::kNames[value - first_part_seconds]) + "_seconds";
}

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace annulus
