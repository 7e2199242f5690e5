#pragma once

#include <deque>
#include <memory>
#include <string>

#include "collectives/all_reduce.h"
#include "collectives/gpu/stream_algorithm.h"
#include "collectives/world/all_reduce_context.h"

namespace annulus {

namespace cuda {
class SideLane;
class LaneClock;
}  // namespace cuda

// An AllReduce that runs an algorithm on a separate stream: AllReduceWorker's counterpart on a GPU, without a thread.
// The stream begins an all-reduce when the device's lane has reached the point of the enqueue(), and join() makes the
// lane wait for it; the calling thread waits in wait() only.
class AllReduceStream final : public AllReduce {
 public:
  // `lane`: runs the algorithm.
  AllReduceStream(AllReduceInfo info, std::unique_ptr<cuda::SideLane> lane, std::unique_ptr<StreamAlgorithm> algorithm);
  ~AllReduceStream() override;

  DeviceView allocate(std::size_t bytes, Memory) override { return algorithm_->allocate(bytes); }
  Ticket enqueue(DeviceView values, const Request& request) override;
  Range chunk(std::size_t count) const override { return algorithm_->chunk(count); }
  void wait(Ticket ticket) override;
  void join(Ticket ticket) override;
  void abandon() noexcept override { algorithm_->abandon(); }

 private:
  struct Job {
    Ticket ticket = 0;
    std::size_t bucket;
    std::uint64_t bytes;  // to be sent
    std::int64_t step = TraceLane::kNone;
    std::uint64_t begin_mark = 0, end_mark = 0;  // on clock_; 0 if not recorded
  };

  std::uint64_t mark();  // 0 if nothing is recorded
  void collect();        // removes completed all-reduces from pending_
  void add_span(const Job& job);
  void record_progress();  // of the oldest all-reduce

  std::unique_ptr<cuda::SideLane> lane_;
  std::unique_ptr<cuda::LaneClock> clock_;
  std::unique_ptr<StreamAlgorithm> algorithm_;  // after the lane that it uses
  std::deque<Job> pending_;
  StreamAlgorithm::Place place_;  // recorded last
  std::uint64_t bytes_sent_ = 0;
};

}  // namespace annulus
