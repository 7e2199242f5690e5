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
#include "collectives/patience.h"
#include "collectives/sum_algorithm.h"

namespace annulus {

// An AllReduce that runs a blocking algorithm on a thread of its own, one array after the other in the order in which
// they were enqueued. MPI only moves messages while somebody calls it: this thread does, while the caller computes.
//
// An error in the algorithm ends the thread; the caller gets it from wait() and from every later call. Destroying the
// worker abandons sums that nobody has waited for, so that an exception elsewhere can leave without waiting for ranks
// that never come (MPI_Allreduce cannot be abandoned: the one that has begun is waited for).
class AllReduceWorker final : public AllReduce {
 public:
  // `patience` is the one with which the algorithm waits, if it can.
  AllReduceWorker(std::unique_ptr<SumAlgorithm> algorithm, std::shared_ptr<Patience> patience, std::string description);
  ~AllReduceWorker() override;

  std::string description() const override { return description_; }
  Ticket enqueue(std::span<float> values) override;
  void wait(Ticket ticket) override;
  std::uint64_t bytes_sent() const override { return bytes_sent_; }

 private:
  using Jobs = std::vector<std::span<float>>;

  void work();
  bool take(Jobs& jobs);  // both: false where it is time to stop
  bool complete_one();
  void fail_with(std::exception_ptr failure);

  std::unique_ptr<SumAlgorithm> algorithm_;
  std::shared_ptr<Patience> patience_;
  std::string description_;
  std::atomic<std::uint64_t> bytes_sent_ = 0;

  std::mutex mutex_;  // guards what follows
  std::condition_variable enqueued_, completed_;
  Jobs jobs_;
  Ticket last_enqueued_ = 0;
  Ticket last_completed_ = 0;
  std::exception_ptr failure_;
  bool stopping_ = false;

  std::jthread thread_;  // last: it uses all of the above
};

}  // namespace annulus
