#pragma once

#include <deque>
#include <memory>
#include <string>

#include "collectives/all_reduce.h"
#include "collectives/gpu/stream_algorithm.h"
#include "collectives/world/backoff.h"

namespace annulus {

namespace cuda {
class SideLane;
class LaneClock;
}  // namespace cuda

// An AllReduce that puts an algorithm's work on a stream of its own: what AllReduceWorker is for a host's algorithms.
// No thread takes part. The stream begins a sum when the device's lane has come to where it was enqueued, and join()
// makes the lane wait for it: the calling thread waits in wait() only.
class AllReduceStream final : public AllReduce {
 public:
  // `lane`: on whose stream the algorithm puts its work. `name`: also its order(). `why`: this one was taken.
  AllReduceStream(std::unique_ptr<cuda::SideLane> lane, std::unique_ptr<StreamAlgorithm> algorithm, std::string name,
                  std::string why);
  ~AllReduceStream() override;

  std::string description() const override { return name_ + " (" + why_ + ")"; }
  std::string order() const override { return name_; }
  DeviceView allocate(std::size_t bytes) override { return algorithm_->allocate(bytes); }
  Ticket enqueue(DeviceView values, Next next, std::size_t bucket) override;
  void wait(Ticket ticket) override;
  void join(Ticket ticket) override;
  void abandon() noexcept override { algorithm_->abandon(); }
  std::uint64_t bytes_sent() const override { return bytes_sent_; }
  void record_to(TraceLane* lane) override;
  const AllReduceProgress& activity() const override { return backoff_->activity(); }

 private:
  struct Sum {
    Ticket ticket = 0;
    std::size_t bucket;
    std::uint64_t bytes;  // that it sends
    std::int64_t step = TraceLane::kNone;
    std::uint64_t begin_mark = 0, end_mark = 0;  // of clock_; 0 where it is not recorded
  };

  std::uint64_t mark();  // 0 where nothing is recorded
  void collect();        // the oldest sums, as far as they are complete
  void add_span(const Sum& sum);
  void tell_activity();  // where the oldest one stands

  std::unique_ptr<cuda::SideLane> lane_;
  std::unique_ptr<cuda::LaneClock> clock_;
  TraceLane* trace_ = nullptr;
  std::unique_ptr<StreamAlgorithm> algorithm_;  // behind the lane that it uses
  std::string name_, why_;
  std::unique_ptr<Backoff> backoff_ = std::make_unique<Backoff>(0);  // naps, as a GPU takes its time
  std::deque<Sum> pending_;
  StreamAlgorithm::Place place_;  // told last
  std::uint64_t bytes_sent_ = 0;
};

}  // namespace annulus
