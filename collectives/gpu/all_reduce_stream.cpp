#include "collectives/gpu/all_reduce_stream.h"

#include <utility>

#include "kernels/base/clock.h"
#include "kernels/cuda/runtime/lane_clock.h"
#include "kernels/cuda/runtime/side_lane.h"

namespace annulus {

// Waits take naps, because a GPU takes long.
AllReduceStream::AllReduceStream(AllReduceInfo info, std::unique_ptr<cuda::SideLane> lane,
                                 std::unique_ptr<StreamAlgorithm> algorithm)
    : AllReduce(std::move(info), std::make_shared<AllReduceContext>(0)),
      lane_(std::move(lane)),
      clock_(std::make_unique<cuda::LaneClock>()),
      algorithm_(std::move(algorithm)) {}

AllReduceStream::~AllReduceStream() = default;

AllReduce::Ticket AllReduceStream::enqueue(DeviceView values, const Request& request) {
  expect_possible(request);
  algorithm_->expect_all_there();
  collect();
  lane_->begin();
  Job job{.bucket = request.bucket, .bytes = algorithm_->bytes_to_send(values, request.verb)};
  if (context()->lane != nullptr) job.step = context()->lane->step();
  job.begin_mark = mark();
  algorithm_->put(values, request.verb);
  job.end_mark = mark();
  job.ticket = lane_->end();
  pending_.push_back(job);
  if (pending_.size() == 1) context()->progress.begin(request.bucket);
  return job.ticket;
}

std::uint64_t AllReduceStream::mark() {
  const TraceLane* const trace = context()->lane;
  return trace != nullptr && trace->recording() ? clock_->mark(lane_->stream()) : 0;
}

void AllReduceStream::join(Ticket ticket) {
  lane_->join(ticket);
}

void AllReduceStream::wait(Ticket ticket) {
  constexpr double kWithoutRest = 100e-6;  // seconds: a nap takes nearly as long
  constexpr int kNapsOfQuickSums = 10;     // some milliseconds
  const double begun = now_seconds();
  for (int naps = 0; !lane_->done(ticket);) {
    algorithm_->expect_all_there();
    if (now_seconds() - begun < kWithoutRest) continue;
    if (naps >= kNapsOfQuickSums) {
      collect();
      record_progress();
    }
    context()->backoff.pause(naps++);
  }
  collect();
  algorithm_->expect_all_there();  // or the result is invalid
}

void AllReduceStream::collect() {
  AllReduceProgress& progress = context()->progress;
  while (!pending_.empty() && lane_->done(pending_.front().ticket)) {
    add_span(pending_.front());
    bytes_sent_ += pending_.front().bytes;
    pending_.pop_front();
    progress.end(bytes_sent_);
    place_ = {};
    if (!pending_.empty()) progress.begin(pending_.front().bucket);
  }
}

void AllReduceStream::add_span(const Job& job) {
  if (job.begin_mark == 0 || job.end_mark == 0) return;
  const AllReduceName name = name_of(job.bucket);
  context()->lane->add(
      {name.text, name.number, job.step, clock_->seconds(job.begin_mark), clock_->seconds(job.end_mark)});
}

// Records changes only, because a watchdog takes every record for progress.
void AllReduceStream::record_progress() {
  if (pending_.empty() || !lane_->begun(pending_.front().ticket)) return;
  const StreamAlgorithm::Place place = algorithm_->snapshot();
  if (place == place_) return;
  context()->progress.enter(place.step);
  context()->progress.await(place.peer);
  place_ = place;
}

}  // namespace annulus
