#pragma once

#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "collectives/all_reduce.h"
#include "collectives/all_reduce_algorithm.h"
#include "collectives/world/backoff.h"

namespace annulus {

// An AllReduce that runs a blocking algorithm, one array after the other in the order in which they were enqueued, on
// a thread of its own while the caller computes. (MPI only moves messages while somebody calls it: this thread does.)
//
// A caller that waits has nothing else to do, so it runs what has not begun itself: handing a sum over to the other
// thread and back costs more than a quick sum does. So quick sums, and those that are waited for at once, do not wake
// the thread.
//
// An error in the algorithm ends all sums; the caller gets it from wait() and from every later call. Destroying the
// worker abandons sums that nobody has waited for, so that an exception elsewhere can leave without waiting for ranks
// that never come (MPI_Allreduce cannot be abandoned: the one that has begun is waited for).
class AllReduceWorker final : public AllReduce {
 public:
  // A sum of less than kQuick bytes in shared memory takes less time than waking the thread.
  static constexpr std::size_t kQuick = 64 * 1024;

  // `patience` is the one with which the algorithm waits, if it can. For the user: its `name`, and `why` it was taken.
  // `worth_waking`: smaller sums, in bytes, can wait until somebody waits for them.
  AllReduceWorker(std::unique_ptr<AllReduceAlgorithm> algorithm, std::shared_ptr<Backoff> backoff, std::string name,
                  std::string why, std::size_t worth_waking = kQuick);
  ~AllReduceWorker() override;

  std::string description() const override { return name_ + " (" + why_ + ")"; }
  std::string order() const override { return algorithm_->order(); }
  std::optional<std::size_t> crossover() const override { return algorithm_->crossover(); }
  WireType wire() const override { return algorithm_->wire(); }
  DeviceView allocate(std::size_t bytes) override {
    const auto memory = algorithm_->allocate(bytes);
    return {memory.data(), memory.size()};
  }
  Ticket enqueue(DeviceView values, Next next, std::size_t bucket) override;
  void wait(Ticket ticket) override;
  void abandon() noexcept override;
  std::uint64_t bytes_sent() const override { return bytes_sent_; }
  void record_to(TraceLane* lane) override;
  const AllReduceProgress& activity() const override { return backoff_->activity(); }

 private:
  void work();
  void run_next(std::unique_lock<std::mutex>& lock);  // the oldest sum that has not begun; unlocked meanwhile

  bool idle() const { return !running_ && next_job_ < jobs_.size(); }

  std::unique_ptr<AllReduceAlgorithm> algorithm_;
  std::shared_ptr<Backoff> backoff_;
  std::string name_, why_;
  std::size_t worth_waking_;
  std::atomic<std::uint64_t> bytes_sent_ = 0;
  TraceLane* lane_ = nullptr;

  std::mutex mutex_;  // guards what follows
  std::condition_variable work_there_, completed_;
  struct Job {
    std::span<float> values;
    std::size_t bucket;
  };
  std::vector<Job> jobs_;  // in order; those before next_job_ have begun
  std::size_t next_job_ = 0;
  bool running_ = false;  // some thread is in algorithm_
  bool wake_ = false;     // some sum that has not begun is worth it
  Ticket last_enqueued_ = 0;
  Ticket last_completed_ = 0;
  std::exception_ptr failure_;
  bool stopping_ = false;

  std::jthread thread_;  // last: it uses all of the above
};

}  // namespace annulus
