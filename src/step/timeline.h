#pragma once

#include <filesystem>
#include <string>

#include "collectives/world/world.h"
#include "kernels/base/trace.h"

namespace annulus {

struct TimelineOptions {
  std::filesystem::path file{};  // empty: none
  std::size_t steps = 20;        // to look at
  std::size_t first = 5;         // that are not looked at before: memory is touched for the first time there
};

// What every rank did in some of its steps, and when, in one file that https://ui.perfetto.dev and chrome://tracing
// show: a process for each rank, in it three lanes, all on the root's clock.
//
// The format is Chrome's, a JSON array of events ("Trace Event Format", Google 2016): complete events ("ph": "X"), with
// times in microseconds, and names of processes and threads ("ph": "M"). Each event of a step has its number in args.
class Timeline {
 public:
  // `clock_offset`: see clock_offset_to_root().
  Timeline(const TimelineOptions& options, double clock_offset);

  // An empty timeline, so that a file that cannot be written is known before the work is done. Throws Error.
  void claim(const World& world) const;

  // Null where no timeline was asked for.
  TraceLane* run() { return on() ? &run_ : nullptr; }                // epochs, evaluations, checkpoints: all of them
  TraceLane* step() { return on() ? &step_ : nullptr; }              // steps, down to the layers
  TraceLane* all_reduce() { return on() ? &all_reduce_ : nullptr; }  // sums, down to the exchanges between ranks

  // To be called before each step, with its number in the training run.
  void begin_step(std::uint64_t number);

  // Returns what to tell the user, nothing where no timeline was asked for. Collective. Throws Error.
  std::string write(const World& world) const;

 private:
  bool on() const { return !options_.file.empty(); }

  const TimelineOptions options_;
  const double clock_offset_;
  const double begun_;
  TraceLane run_, step_, all_reduce_;
  std::size_t steps_ = 0;  // that began
};

}  // namespace annulus
