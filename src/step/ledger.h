#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "collectives/world/world.h"

namespace annulus {

// A breakdown of the wall time of training steps, in seconds. The parts add up to the wall time.
struct StepTimes {
  enum Part { input, compute, exposed_communication, waiting_for_slower_ranks, optimizer, rest, kParts };
  static constexpr std::array<std::string_view, kParts> kNames{
      "input", "compute", "exposed_communication", "waiting_for_slower_ranks", "optimizer", "rest"};

  std::array<double, kParts> seconds{};
  std::size_t steps = 0;

  double wall() const;
  StepTimes& operator+=(const StepTimes& other);
};

// The lateness of a rank's gradients compared with the other ranks', over some steps.
struct Arrival {
  double behind_first = 0;  // seconds between the first rank's last gradients and this rank's, summed over the steps
  std::size_t last = 0;     // steps in which it was the last rank
};

// A rank whose gradients are late.
struct Lateness {
  std::size_t rank = 0;  // in the job
  double seconds = 0;    // per step, behind the median rank
  double share = 0;      // of the step's time
  std::size_t last = 0;  // steps in which it was the last rank
};

// The step times of all ranks over the same steps.
struct Accounts {
  std::vector<std::size_t> ranks_in_job;  // the number of each rank, in ascending order
  std::vector<StepTimes> ranks;
  std::vector<Arrival> arrivals;  // of each rank; empty if ranks do not wait for each other
  // Element N is the number of gradients, over all ranks, that were N steps old. Empty if ranks do not train
  // asynchronously.
  std::vector<std::int64_t> staleness;

  StepTimes mean() const;
  std::optional<double> mean_staleness() const;
  Accounts& operator+=(const Accounts& later);  // drops ranks that were lost before `later`

  // Returns the latest rank. Times are summed over the steps for each rank before ranks are compared: random delays,
  // now of this rank and now of that one, cancel, and a rank that is always slow remains.
  Lateness latest() const;
};

// Accounts for the time of a rank's steps.
//
// A step waits for an all-reduce for one of two reasons: the bytes are still in transit, or some rank is still
// computing its contribution. At the end of a step that is the slowest rank's last gradient, which all ranks need
// however fast communication is. The reason is known once all ranks have exchanged their ready times: the wait up to
// the latest ready time is booked as waiting for slower ranks, the rest as communication.
class Ledger {
 public:
  // `clock_offset`: see clock_offset_to_root().
  explicit Ledger(double clock_offset) : clock_offset_(clock_offset) {}

  void add(StepTimes::Part part, double seconds) { times_.seconds[part] += seconds; }
  // Adds a wait for an all-reduce; all times are in now_seconds(). `ready`: the moment when this rank had computed
  // everything that the wait needs. REQUIRES: every rank adds the same waits in the same order.
  void add_wait(double ready, double wait_begin, double wait_end);
  void add_arrival(double ready);  // of a step's last gradients, in now_seconds(); not called if ranks do not wait
  void add_staleness(std::size_t steps);                      // of a gradient of this rank
  void end_step(double wall_seconds, std::size_t steps = 1);  // `steps`: as which it counts
  // Calls `observer` with the wall time and compute time of each step of this rank when the step is added.
  using Observer = std::function<void(double wall_seconds, double compute_seconds)>;
  void observe(Observer observer) { observer_ = std::move(observer); }
  void add_between_steps(double wall_seconds) { wall_ += wall_seconds; }

  // Discards everything booked since the last close(). Needed after a step was interrupted: the ranks may have booked
  // different waits, and close() requires the same on all.
  void discard();

  // Returns everything that was booked since the last call, of every rank, on every rank. `replicas`: the ranks of
  // `world` that this rank has waited for: ranks with the same pipeline stage. Collective.
  Accounts close(const World& world, const World& replicas);
  Accounts close(const World& world) { return close(world, world); }

 private:
  Arrival close_arrivals(const World& world);
  void close_waits(const World& world);

  double clock_offset_;
  Observer observer_;
  double wall_ = 0;
  std::vector<std::int64_t> staleness_;
  double compute_before_ = 0;  // booked by the end of the previous step
  StepTimes times_;
  // On the clock of rank 0:
  std::vector<double> ready_;     // of every wait
  std::vector<double> finished_;  // for every step: when the last bucket was ready
  struct Wait {
    double begin, end;
  };
  std::vector<Wait> waits_;
};

}  // namespace annulus
