#include "kernels/cuda/vendor/tuning_budget.h"

#include <fmt/format.h>

#include <utility>

namespace annulus::cuda {

void TuningBudget::begin_problem() {
  constexpr double kEvery = 2;  // seconds
  ++problems_;
  if (seconds() < reported_ + kEvery) return;
  reported_ = seconds();
  report_(fmt::format("tuning: plans of {} problems measured in {:.0f} s, of at most {:.0f} s", problems_ - 1,
                      seconds(), limit_));
}

void TuningBudget::leave_out() {
  report_once(
      fmt::format("tuning: the {:.0f} s are over, so other plans are not measured; {} keeps the choice, and later runs "
                  "have the same bits",
                  limit_, file_));
}

void TuningBudget::meet_unmeasured() {
  report_once(
      fmt::format("tuning: some choices in {} were not measured, for want of time: delete it to measure again", file_));
}

void TuningBudget::report_once(const std::string& line) {
  if (!std::exchange(said_, true)) report_(line);
}

}  // namespace annulus::cuda
