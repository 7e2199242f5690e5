#include "kernels/cuda/runtime/lane_clock.h"

#include <limits>
#include <utility>

#include "kernels/base/clock.h"
#include "kernels/base/error.h"

namespace annulus::cuda {
namespace {

constexpr double kRebaseSeconds = 10;
constexpr int kTrials = 5;

}  // namespace

LaneClock::LaneClock() : events_(kRemembered) {
  rebase();
}

std::uint64_t LaneClock::mark(cudaStream_t stream) {
  const std::uint64_t mark = reserve();
  check(cudaEventRecord(event(mark), stream));
  return mark;
}

std::uint64_t LaneClock::reserve() {
  Event& event = events_[++last_ % kRemembered];
  if (event)
    check(cudaEventSynchronize(event.get()));  // a mark that is no longer kept is done, see await()
  else
    event = make_timed_event();
  return last_;
}

cudaEvent_t LaneClock::event(std::uint64_t mark) const {
  if (mark == 0 || mark > last_ || mark + kRemembered <= last_)
    fail("mark {} of a GPU's lane is no longer kept, {} came after it: use larger buckets (--bucket)", mark,
         last_ - mark);
  return events_[mark % kRemembered].get();
}

void LaneClock::await(cudaStream_t stream, std::uint64_t mark) {
  if (mark + kRemembered > last_) check(cudaStreamWaitEvent(stream, event(mark)));
}

double LaneClock::seconds(std::uint64_t mark) {
  cudaEvent_t event = this->event(mark);
  check(cudaEventSynchronize(event));
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, base_.get(), event));
  const double seconds = base_seconds_ + 1e-3 * static_cast<double>(milliseconds);
  if (seconds - base_seconds_ > kRebaseSeconds) rebase();
  return seconds;
}

// The stream has no other work, so the event happens between two readings of the clock. The trial with the closest
// readings counts: this thread may be interrupted between them.
void LaneClock::rebase() {
  const Stream idle = make_stream();
  double shortest = std::numeric_limits<double>::infinity();
  for (int trial = 0; trial < kTrials; ++trial) {
    Event base = make_timed_event();
    const double before = now_seconds();
    check(cudaEventRecord(base.get(), idle.get()));
    check(cudaEventSynchronize(base.get()));
    const double after = now_seconds();
    if (after - before >= shortest) continue;
    shortest = after - before;
    base_seconds_ = (before + after) / 2;
    base_ = std::move(base);
  }
}

}  // namespace annulus::cuda
