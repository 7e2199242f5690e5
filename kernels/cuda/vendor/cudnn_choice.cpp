#include "kernels/cuda/vendor/cudnn_choice.h"

#include <algorithm>
#include <limits>

#include "kernels/base/error.h"

namespace annulus::cuda {

std::optional<cudnn::Choice> TunedChoice::known(const std::string& problem) const {
  const auto found = file_.find(problem);
  if (!found) return std::nullopt;
  if (found->unmeasured) budget_->meet_unmeasured();
  return found->choice;
}

std::size_t TunedChoice::fastest(const std::string& problem, std::span<const cudnn::Choice> candidates,
                                 const Measure& measure) {
  if (const auto choice = known(problem)) {
    const auto found = std::ranges::find(candidates, *choice);
    if (found == candidates.end())
      fail("{}: {} is unknown for a {}: delete the file to measure again", file_.file().string(), to_string(*choice),
           problem);
    return static_cast<std::size_t>(found - candidates.begin());
  }
  if (!budget_->spent()) return measure_all(problem, candidates, measure);
  budget_->leave_out();
  file_.add(problem, {.choice = candidates[0], .unmeasured = true});
  return 0;
}

std::size_t TunedChoice::measure_all(const std::string& problem, std::span<const cudnn::Choice> candidates,
                                     const Measure& measure) {
  budget_->begin_problem();
  const TuningBudget::Spending spending(*budget_);
  std::optional<std::size_t> best;
  double least = std::numeric_limits<double>::infinity();
  std::string objection;
  for (std::size_t i = 0; i < candidates.size() && !(best && budget_->spent()); ++i) {
    try {
      const double microseconds = measure(i, least);
      if (microseconds >= least) continue;
      least = microseconds;
      best = i;
    } catch (const Error& error) {  // it does not run on this device
      objection = error.what();
    }
  }
  if (!best) fail("none of the candidates for a {} can be measured ({})", problem, objection);
  file_.add(problem, {candidates[*best], least});
  return *best;
}

}  // namespace annulus::cuda
