#include "src/step/ledger.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "kernels/base/median.h"

namespace annulus {
double StepTimes::wall() const {
  return std::accumulate(seconds.begin(), seconds.end(), 0.0);
}

StepTimes& StepTimes::operator+=(const StepTimes& other) {
  for (std::size_t part = 0; part < kParts; ++part) seconds[part] += other.seconds[part];
  steps += other.steps;
  return *this;
}

StepTimes Accounts::mean() const {
  StepTimes mean;
  if (ranks.empty()) return mean;
  for (const StepTimes& rank : ranks) mean += rank;
  for (double& seconds : mean.seconds) seconds /= static_cast<double>(ranks.size());
  mean.steps = ranks.front().steps;
  return mean;
}

std::optional<double> Accounts::mean_staleness() const {
  double gradients = 0, sum = 0;
  for (std::size_t steps = 0; steps < staleness.size(); ++steps) {
    gradients += static_cast<double>(staleness[steps]);
    sum += static_cast<double>(steps) * static_cast<double>(staleness[steps]);
  }
  return gradients > 0 ? std::optional(sum / gradients) : std::nullopt;
}

Accounts& Accounts::operator+=(const Accounts& later) {
  Accounts sum = later;
  if (!arrivals.empty()) sum.arrivals.resize(later.ranks.size());  // `later` has none if it has no steps
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const auto same = std::ranges::find(later.ranks_in_job, ranks_in_job[rank]);
    if (same == later.ranks_in_job.end()) continue;
    const auto place = static_cast<std::size_t>(same - later.ranks_in_job.begin());
    sum.ranks[place] += ranks[rank];
    if (arrivals.empty()) continue;
    sum.arrivals[place].behind_first += arrivals[rank].behind_first;
    sum.arrivals[place].last += arrivals[rank].last;
  }
  sum.staleness.resize(std::max(staleness.size(), later.staleness.size()));
  for (std::size_t steps = 0; steps < staleness.size(); ++steps) sum.staleness[steps] += staleness[steps];
  return *this = std::move(sum);
}

Lateness Accounts::latest() const {
  if (arrivals.empty()) return {};
  std::vector<double> behind;
  for (const Arrival& arrival : arrivals) behind.push_back(arrival.behind_first);
  const auto most = std::ranges::max_element(behind);
  const auto rank = static_cast<std::size_t>(most - behind.begin());
  const double seconds = *most - median(behind);
  const StepTimes all = mean();
  const auto steps = static_cast<double>(std::max<std::size_t>(all.steps, 1));
  return {ranks_in_job[rank], seconds / steps, all.wall() > 0 ? seconds / all.wall() : 0, arrivals[rank].last};
}

void Ledger::add_wait(double ready, double wait_begin, double wait_end) {
  ready_.push_back(ready + clock_offset_);
  waits_.push_back({wait_begin + clock_offset_, wait_end + clock_offset_});
}

void Ledger::add_arrival(double ready) {
  finished_.push_back(ready + clock_offset_);
}

void Ledger::add_staleness(std::size_t steps) {
  staleness_.resize(std::max(staleness_.size(), steps + 1));
  ++staleness_[steps];
}

void Ledger::end_step(double wall_seconds, std::size_t steps) {
  wall_ += wall_seconds;
  times_.steps += steps;
  const double compute = times_.seconds[StepTimes::compute];
  if (observer_) observer_(wall_seconds, compute - std::exchange(compute_before_, compute));
}

void Ledger::discard() {
  wall_ = compute_before_ = 0;
  times_ = {};
  ready_.clear();
  finished_.clear();
  waits_.clear();
  staleness_.clear();
}

Accounts Ledger::close(const World& world, const World& replicas) {
  const bool waited = !finished_.empty();
  const Arrival arrival = close_arrivals(replicas);
  close_waits(replicas);
  times_.seconds[StepTimes::rest] = wall_ - times_.wall();
  wall_ = 0;
  compute_before_ = 0;
  const StepTimes mine = std::exchange(times_, {});

  const std::vector<double> seconds = world.gather(mine.seconds);
  const std::array numbers{arrival.behind_first, static_cast<double>(arrival.last),
                           static_cast<double>(staleness_.size())};
  const std::vector<double> of_ranks = world.gather(numbers);
  Accounts accounts;
  for (std::size_t rank = 0; rank * numbers.size() < of_ranks.size(); ++rank) {
    const double* const of_rank = of_ranks.data() + rank * numbers.size();
    accounts.ranks_in_job.push_back(static_cast<std::size_t>(world.rank_in_job(static_cast<int>(rank))));
    StepTimes& times = accounts.ranks.emplace_back();
    std::copy_n(seconds.begin() + static_cast<std::ptrdiff_t>(rank * StepTimes::kParts), StepTimes::kParts,
                times.seconds.begin());
    times.steps = mine.steps;
    if (waited) accounts.arrivals.push_back({of_rank[0], static_cast<std::size_t>(of_rank[1])});
    accounts.staleness.resize(std::max(accounts.staleness.size(), static_cast<std::size_t>(of_rank[2])));
  }
  std::ranges::copy(std::exchange(staleness_, {}), accounts.staleness.begin());
  if (!accounts.staleness.empty()) world.sum(accounts.staleness);
  return accounts;
}

Arrival Ledger::close_arrivals(const World& world) {
  std::vector<double> first = finished_, last = finished_;
  world.minimum(first);
  world.maximum(last);
  Arrival arrival;
  for (std::size_t step = 0; step < finished_.size(); ++step) {
    arrival.behind_first += finished_[step] - first[step];
    if (finished_[step] == last[step]) ++arrival.last;
  }
  finished_.clear();
  return arrival;
}

void Ledger::close_waits(const World& world) {
  world.maximum(ready_);
  for (std::size_t i = 0; i < waits_.size(); ++i) {
    const auto [begin, end] = waits_[i];
    const double late = std::clamp(ready_[i], begin, end);
    times_.seconds[StepTimes::waiting_for_slower_ranks] += late - begin;
    times_.seconds[StepTimes::exposed_communication] += end - late;
  }
  ready_.clear();
  waits_.clear();
}

}  // namespace annulus
