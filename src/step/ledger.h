#pragma once

#include <array>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "collectives/world/world.h"

namespace annulus {

// Where the wall time of training steps went, in seconds. The parts add up to the wall time.
struct StepTimes {
  enum Part { input, compute, exposed_communication, waiting_for_slower_ranks, optimizer, rest, kParts };
  static constexpr std::array<std::string_view, kParts> kNames{
      "input", "compute", "exposed_communication", "waiting_for_slower_ranks", "optimizer", "rest"};

  std::array<double, kParts> seconds{};
  std::size_t steps = 0;

  double wall() const;
  StepTimes& operator+=(const StepTimes& other);
};

// How a rank's gradients came in, compared with the other ranks', over some steps.
struct Arrival {
  double behind_first = 0;  // seconds, added up: its last gradients were ready after the first rank's
  std::size_t last = 0;     // steps in which it was the last rank
};

// A rank whose gradients are late.
struct Lateness {
  std::size_t rank = 0;
  double seconds = 0;    // a step, behind the median rank
  double share = 0;      // of the step
  std::size_t last = 0;  // steps in which it was the last rank
};

// The books of all ranks over the same steps.
struct Accounts {
  std::vector<StepTimes> ranks;
  std::vector<Arrival> arrivals;  // of each rank; empty where ranks do not wait for each other

  StepTimes mean() const;
  Accounts& operator+=(const Accounts& later);

  // The rank that was behind by the most. Rank by rank the steps are added up before they are compared: that chance
  // makes now this rank late and now that one cancels, and what stays is a rank that is slow.
  Lateness latest() const;
};

// Keeps the books of a rank's steps.
//
// A step waits for a sum for one of two reasons: the bytes are still under way, or some rank is still computing what
// the others wait for: at a step's end the last of its gradients, for however quick sums are, no rank can go on without
// them. Which one it was is known once all ranks have said when they were ready: up to the last rank's moment the wait
// was for slower ranks, after it for communication.
class Ledger {
 public:
  // `clock_offset`: see clock_offset_to_root().
  explicit Ledger(double clock_offset) : clock_offset_(clock_offset) {}

  void add(StepTimes::Part part, double seconds) { times_.seconds[part] += seconds; }
  // For a sum; all in now_seconds(). `ready`: this rank had computed all that is waited for. Every rank's in the same
  // order.
  void add_wait(double ready, double wait_begin, double wait_end);
  void add_arrival(double ready);  // of a step's last gradients, in now_seconds(); none where ranks do not wait
  void end_step(double wall_seconds);
  // Is told of every step of this rank, as it is booked: its wall time, and what of it was computing.
  using Observer = std::function<void(double wall_seconds, double compute_seconds)>;
  void observe(Observer observer) { observer_ = std::move(observer); }
  void add_between_steps(double wall_seconds) { wall_ += wall_seconds; }

  // All that was booked since the last closing, of every rank, on every rank. Collective.
  Accounts close(const World& world);

 private:
  Arrival close_arrivals(const World& world);
  void close_waits(const World& world);

  double clock_offset_;
  Observer observer_;
  double wall_ = 0;
  double compute_before_ = 0;  // booked by the end of the step before
  StepTimes times_;
  // On the root's clock:
  std::vector<double> ready_;     // of every wait's bucket
  std::vector<double> finished_;  // of every step: its last bucket was ready
  struct Wait {
    double begin, end;
  };
  std::vector<Wait> waits_;
};

}  // namespace annulus
