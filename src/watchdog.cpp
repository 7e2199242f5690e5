#include "src/watchdog.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iterator>
#include <string_view>

#include "collectives/all_reduce.h"

namespace annulus {
namespace {

constexpr int kLooks = 20;            // in the time after which a rank counts as stuck
constexpr int kMeetingPatience = 10;  // times as long

// fmt writes its first 500 characters to memory of its own, and write(2) goes past the streams and their locks.
void write_line(const fmt::memory_buffer& line) {
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

// Counted from 1, as in "bucket 7 of 7".
void append_bucket(fmt::memory_buffer& text, std::uint64_t bucket, std::size_t buckets) {
  fmt::format_to(std::back_inserter(text), "bucket {} of {}", bucket + 1, buckets);
}

void append_phase(fmt::memory_buffer& text, const Activity::Snapshot& activity) {
  using enum Activity::Phase;
  const auto append = [&text](std::string_view words) { text.append(words); };
  switch (activity.phase) {
    case starting:
      return append("starting");
    case input:
      return append("waiting for input");
    case forward:
      return append("forward");
    case backward:
      return append("backward");
    case waiting_within_pass:
      return append("waiting for batch norm's sums");
    case waiting_for_bucket:
      return append("waiting for "), append_bucket(text, activity.bucket, activity.buckets);
    case optimizer:
      return append("updating "), append_bucket(text, activity.bucket, activity.buckets);
    case evaluation:
      return append("evaluation");
    case checkpoint:
      return append("checkpoint");
    case meeting:
      return append("waiting for the other ranks");
  }
}

void append_sum(fmt::memory_buffer& text, const SumActivity::Snapshot& sums, std::size_t buckets) {
  const auto to = std::back_inserter(text);
  if (sums.begun == sums.ended) {
    fmt::format_to(to, "idle");
    return;
  }
  if (sums.bucket == AllReduce::kWithinPass)
    fmt::format_to(to, "batch norm's sums");
  else
    append_bucket(text, sums.bucket, buckets);
  const auto& [name, number, of] = sums.step;
  if (number > 0) fmt::format_to(to, ", {} {} of {}", name, number, of);
  if (sums.peer != SumActivity::kNobody) fmt::format_to(to, ", waiting for rank {}", sums.peer);
}

}  // namespace

Watchdog::Watchdog(const Activity& activity, const SumActivity& sums, double seconds, std::function<void()> stalled)
    : activity_(activity), sums_(sums), seconds_(seconds), interval_(seconds / kLooks), stalled_(std::move(stalled)) {
  if (seconds_ > 0) thread_ = std::jthread([this](std::stop_token stop) { watch(stop); });
}

void Watchdog::watch(std::stop_token stop) const {
  std::uint64_t moves = 0;
  for (int still = 0; sleep(stop);) {
    const Activity::Snapshot now = activity_.look();
    const std::uint64_t moved = now.moves + sums_.look().moves - moves;
    still = moved == 0 ? still + 1 : 0;
    moves += moved;
    if (still < (now.phase == Activity::Phase::meeting ? kMeetingPatience * kLooks : kLooks)) continue;
    stalled_();
    return;
  }
}

bool Watchdog::sleep(std::stop_token stop) const {
  std::unique_lock lock(mutex_);
  stopped_.wait_for(lock, stop, std::chrono::duration<double>(interval_), [] { return false; });
  return !stop.stop_requested();
}

fmt::memory_buffer describe(const Activity::Snapshot& activity, const SumActivity::Snapshot& sums) {
  fmt::memory_buffer text;
  fmt::format_to(std::back_inserter(text), "step {}: ", activity.step);
  append_phase(text, activity);
  text.append(std::string_view("; all-reduce: "));
  append_sum(text, sums, activity.buckets);
  return text;
}

void end_stalled_job(const World& world, const Activity& activity, const SumActivity& sums, double seconds) {
  const fmt::memory_buffer where = describe(activity.look(), sums.look());
  fmt::memory_buffer line;
  fmt::format_to(std::back_inserter(line), "annulus: rank {}: nothing has moved for {} s (--stall-timeout) in {}\n",
                 world.rank(), seconds, std::string_view(where.data(), where.size()));
  write_line(line);
  std::this_thread::sleep_for(std::chrono::seconds(1));
  alarm(5);  // SIGALRM ends this process, and with it the job, should MPI not manage to
  if (world.size() > 1) MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
  std::_Exit(EXIT_FAILURE);
}

}  // namespace annulus
