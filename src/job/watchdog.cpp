#include "src/job/watchdog.h"

#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iterator>
#include <string_view>

#include "collectives/all_reduce.h"
#include "collectives/world/abort.h"
#include "src/io/terminal.h"

namespace annulus {
namespace {

constexpr int kPolls = 20;         // polls within the time after which a rank counts as stuck
constexpr int kOthersFactor = 10;  // factor on the time for phases that wait for other ranks

// Appends a number counted from 1, as in "bucket 7 of 7".
void append_bucket(fmt::memory_buffer& text, std::uint64_t bucket, std::size_t buckets) {
  fmt::format_to(std::back_inserter(text), "bucket {} of {}", bucket + 1, buckets);
}

void append_phase(fmt::memory_buffer& text, const Activity::Snapshot& activity) {
  using enum Activity::Phase;
  const auto append = [&text](std::string_view words) { text.append(words); };
  switch (activity.phase) {
    case starting_mpi:
      return append("starting MPI and waiting for the other ranks to start");
    case opening:
      return append("opening data and devices");
    case comparing:
      return append("comparing options and data with the other ranks");
    case connecting:
      return append("setting up the all-reduce");
    case planning:
      return append("planning the network");
    case resuming:
      return append("resuming from a checkpoint");
    case tuning:
      return append("choosing buckets");
    case beginning_step:
      return append("beginning the step");
    case input:
      return append("waiting for input");
    case forward:
      return append("forward");
    case backward:
      return append("backward");
    case waiting_within_pass:
      return append("waiting for batch norm's all-reduce");
    case waiting_for_stage:
      return append("waiting for a neighbouring stage of the pipeline");
    case waiting_for_steps:
      return append("waiting for other ranks' steps");
    case waiting_for_bucket:
      return append("waiting for "), append_bucket(text, activity.bucket, activity.buckets);
    case optimizer:
      return append("updating "), append_bucket(text, activity.bucket, activity.buckets);
    case evaluation:
      return append("evaluation");
    case checkpoint:
      return append("checkpoint");
    case between_steps:
      return append("waiting for the other ranks between steps");
    case meeting:
      return append("waiting for the other ranks");
    case recovering:
      return append("agreeing with the other ranks on which are left");
    case ending:
      return append("waiting for the other ranks to end");
    case unwatched:
      return append("running");
  }
}

void append_all_reduce(fmt::memory_buffer& text, const AllReduceProgress::Snapshot& all_reduce, std::size_t buckets) {
  const auto to = std::back_inserter(text);
  if (all_reduce.begun == all_reduce.ended) {
    fmt::format_to(to, "idle");
    return;
  }
  if (all_reduce.bucket == AllReduce::kWithinPass)
    fmt::format_to(to, "batch norm's all-reduce");
  else
    append_bucket(text, all_reduce.bucket, buckets);
  const auto& [name, number, of] = all_reduce.step;
  if (number > 0) fmt::format_to(to, ", {} {} of {}", name, number, of);
  if (all_reduce.peer != AllReduceProgress::kNobody) fmt::format_to(to, ", waiting for rank {}", all_reduce.peer);
}

int polls_allowed(Activity::Phase phase) {
  return waits_for_others(phase) ? kOthersFactor * kPolls : kPolls;
}

bool mpi_is_up() {
  int begun = 0, ended = 0;
  MPI_Initialized(&begun);
  MPI_Finalized(&ended);
  return begun != 0 && ended == 0;
}

}  // namespace

Watchdog::Watchdog(double seconds, std::function<void(const Stall&)> stalled)
    : seconds_(seconds), stalled_(std::move(stalled)) {
  if (seconds_ > 0) thread_ = std::jthread([this](std::stop_token stop) { run(stop); });
}

void Watchdog::watch(const AllReduceProgress* all_reduce) {
  const std::lock_guard lock(mutex_);
  all_reduce_ = all_reduce;
}

void Watchdog::run(std::stop_token stop) {
  std::uint64_t moves = 0;
  for (int still = 0; sleep(stop);) {
    Stall now = snapshot();
    const std::uint64_t moved = now.activity.moves + (now.all_reduce ? now.all_reduce->moves : 0);
    still = moved == moves && now.activity.phase != Activity::Phase::unwatched ? still + 1 : 0;
    moves = moved;
    if (still < polls_allowed(now.activity.phase)) continue;
    now.seconds = seconds_ * still / kPolls;
    stalled_(now);
    return;
  }
}

Stall Watchdog::snapshot() {
  Stall now{.activity = activity_.snapshot(), .all_reduce = {}};
  const std::lock_guard lock(mutex_);
  if (all_reduce_ != nullptr) now.all_reduce = all_reduce_->snapshot();
  return now;
}

bool Watchdog::sleep(std::stop_token stop) {
  std::unique_lock lock(mutex_);
  stopped_.wait_for(lock, stop, std::chrono::duration<double>(seconds_ / kPolls), [] { return false; });
  return !stop.stop_requested();
}

fmt::memory_buffer describe(const Stall& stall) {
  const Activity::Snapshot& activity = stall.activity;
  fmt::memory_buffer text;
  const auto to = std::back_inserter(text);
  if (activity.step > 0) fmt::format_to(to, " in step {}", activity.step);
  fmt::format_to(to, ": ");
  append_phase(text, activity);
  if (stall.all_reduce) {
    fmt::format_to(to, "; all-reduce: ");
    append_all_reduce(text, *stall.all_reduce, activity.buckets);
  }
  return text;
}

void end_stalled_job(int rank, const Stall& stall) {
  const fmt::memory_buffer where = describe(stall);
  fmt::memory_buffer line;  // holds up to 500 characters itself
  const auto to = std::back_inserter(line);
  fmt::format_to(to, "annulus: ");
  if (rank >= 0) fmt::format_to(to, "rank {}: ", rank);
  fmt::format_to(to, "no progress for {:g} s (--stall-timeout){}\n", stall.seconds,
                 std::string_view(where.data(), where.size()));
  write_to_stderr({line.data(), line.size()});
  std::this_thread::sleep_for(std::chrono::seconds(1));
  alarm(5);  // SIGALRM ends this process, and with it the job, if MPI fails to
  if (mpi_is_up()) abort_job(EXIT_FAILURE);
  std::_Exit(EXIT_FAILURE);
}

}  // namespace annulus
