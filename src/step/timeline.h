#pragma once

#include <filesystem>
#include <string>

#include "collectives/world/world.h"
#include "kernels/base/trace.h"

namespace annulus {

struct TimelineOptions {
  std::filesystem::path file{};  // empty: none
  std::size_t steps = 20;        // number of steps to record
  std::size_t first = 5;         // number of steps skipped before: they touch memory for the first time
};

// A timeline of some steps of every rank, in a file for https://ui.perfetto.dev and chrome://tracing: a process for
// each rank with three lanes, all on the clock of rank 0.
//
// The format is Chrome's, a JSON array of events ("Trace Event Format", Google 2016): complete events ("ph": "X"), with
// times in microseconds, and names of processes and threads ("ph": "M"). Each event of a step has the step's number in
// args.
class Timeline {
 public:
  // `clock_offset`: see clock_offset_to_root().
  Timeline(const TimelineOptions& options, double clock_offset);

  // Writes an empty timeline, so that a file that cannot be written is detected before the work is done. Throws Error.
  void claim(const World& world) const;

  // The lanes; null if no timeline was requested.
  TraceLane* run() { return on() ? &run_ : nullptr; }                // all epochs, evaluations and checkpoints
  TraceLane* step() { return on() ? &step_ : nullptr; }              // steps, down to the layers
  TraceLane* all_reduce() { return on() ? &all_reduce_ : nullptr; }  // all-reduces, down to the exchanges between ranks

  // To be called before each step, with the step's number in the training run.
  void begin_step(std::uint64_t number);

  // Writes the file. Returns a message for the user, empty if no timeline was requested. Collective. Throws Error.
  std::string write(const World& world) const;

 private:
  bool on() const { return !options_.file.empty(); }

  const TimelineOptions options_;
  const double clock_offset_;
  const double begun_;
  TraceLane run_, step_, all_reduce_;
  std::size_t steps_ = 0;  // number of steps begun
};

}  // namespace annulus
