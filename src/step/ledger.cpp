#include "src/step/ledger.h"

#include <algorithm>
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

Accounts& Accounts::operator+=(const Accounts& later) {
  ranks.resize(later.ranks.size());
  arrivals.resize(std::max(arrivals.size(), later.arrivals.size()));  // `later` has none if it has no steps
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) ranks[rank] += later.ranks[rank];
  for (std::size_t rank = 0; rank < later.arrivals.size(); ++rank) {
    arrivals[rank].behind_first += later.arrivals[rank].behind_first;
    arrivals[rank].last += later.arrivals[rank].last;
  }
  return *this;
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
  return {rank, seconds / steps, all.wall() > 0 ? seconds / all.wall() : 0, arrivals[rank].last};
}

void Ledger::add_wait(double ready, double wait_begin, double wait_end) {
  ready_.push_back(ready + clock_offset_);
  waits_.push_back({wait_begin + clock_offset_, wait_end + clock_offset_});
}

void Ledger::add_arrival(double ready) {
  finished_.push_back(ready + clock_offset_);
}

void Ledger::end_step(double wall_seconds) {
  wall_ += wall_seconds;
  ++times_.steps;
  const double compute = times_.seconds[StepTimes::compute];
  if (observer_) observer_(wall_seconds, compute - std::exchange(compute_before_, compute));
}

void Ledger::discard() {
  wall_ = compute_before_ = 0;
  times_ = {};
  ready_.clear();
  finished_.clear();
  waits_.clear();
}

Accounts Ledger::close(const World& world) {
  const bool waited = !finished_.empty();
  const Arrival arrival = close_arrivals(world);
  close_waits(world);
  times_.seconds[StepTimes::rest] = wall_ - times_.wall();
  wall_ = 0;
  compute_before_ = 0;
  const StepTimes mine = std::exchange(times_, {});

  const std::vector<double> seconds = world.gather(mine.seconds);
  const std::vector<double> behind = world.gather(arrival.behind_first);
  const std::vector<std::uint64_t> last = world.gather(std::uint64_t{arrival.last});
  Accounts accounts;
  for (std::size_t rank = 0; rank < behind.size(); ++rank) {
    StepTimes& times = accounts.ranks.emplace_back();
    std::copy_n(seconds.begin() + static_cast<std::ptrdiff_t>(rank * StepTimes::kParts), StepTimes::kParts,
                times.seconds.begin());
    times.steps = mine.steps;
    if (waited) accounts.arrivals.push_back({behind[rank], last[rank]});
  }
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
