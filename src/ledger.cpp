#include "src/ledger.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace annulus {

double StepTimes::wall() const {
  return std::accumulate(seconds.begin(), seconds.end(), 0.0);
}

StepTimes& StepTimes::operator+=(const StepTimes& other) {
  for (std::size_t part = 0; part < kParts; ++part) seconds[part] += other.seconds[part];
  steps += other.steps;
  return *this;
}

void Ledger::add_waits(std::span<const GradientBuckets::Times> buckets) {
  for (const auto& bucket : buckets) {
    ready_.push_back(bucket.ready + clock_offset_);
    waits_.push_back({bucket.wait_begin + clock_offset_, bucket.wait_end + clock_offset_});
  }
}

void Ledger::end_step(double wall_seconds) {
  wall_ += wall_seconds;
  ++times_.steps;
}

StepTimes Ledger::close(const World& world) {
  world.maximum(ready_);
  for (std::size_t i = 0; i < waits_.size(); ++i) {
    const auto [begin, end] = waits_[i];
    const double late = std::clamp(ready_[i], begin, end);
    times_.seconds[StepTimes::waiting_for_slower_ranks] += late - begin;
    times_.seconds[StepTimes::exposed_communication] += end - late;
  }
  times_.seconds[StepTimes::rest] = wall_ - times_.wall();

  world.sum(times_.seconds);
  for (double& seconds : times_.seconds) seconds /= world.size();

  wall_ = 0;
  ready_.clear();
  waits_.clear();
  return std::exchange(times_, {});
}

}  // namespace annulus
