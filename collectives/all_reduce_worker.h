#pragma once

#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "collectives/all_reduce.h"
#include "collectives/all_reduce_algorithm.h"
#include "collectives/world/all_reduce_context.h"

namespace annulus {

// An algorithm's AllReduceInfo; `name`, and `why` it was chosen, are for the user.
AllReduceInfo info_of(const AllReduceAlgorithm& algorithm, const std::string& name, const std::string& why);

// An AllReduce that runs a blocking algorithm on a separate thread while the caller computes, array by array in
// enqueue() order. (MPI makes progress on messages only inside MPI calls; this thread makes them.)
//
// A caller of wait() has nothing else to do, so it runs the jobs that have not begun itself: handing a job over to the
// other thread and back costs more than a short all-reduce. So all-reduces that are short or waited for immediately do
// not wake the thread.
//
// An error in the algorithm ends all jobs; wait() and every later call rethrow it. The destructor abandons jobs that
// nobody has waited for, so that an exception elsewhere can leave without waiting for ranks that never come.
// (MPI_Allreduce cannot be abandoned: a call that has begun is waited for.)
class AllReduceWorker final : public AllReduce {
 public:
  // An all-reduce shorter than kQuick bytes in shared memory takes less time than waking the thread.
  static constexpr std::size_t kQuick = 64 * 1024;

  // `name`, and `why` it was chosen, are for the user. `worth_waking`: all-reduces shorter than this, in bytes, do not
  // wake the thread; they run when somebody waits for them. `order`: null for arrays in host memory; else part of the
  // algorithm.
  AllReduceWorker(std::unique_ptr<AllReduceAlgorithm> algorithm, const std::string& name, const std::string& why,
                  std::size_t worth_waking = kQuick, LaneOrder* order = nullptr);
  ~AllReduceWorker() override;

  DeviceView allocate(std::size_t bytes, Memory memory) override;
  DeviceView addend(DeviceView values, std::size_t number) override { return algorithm_->addend(values, number); }
  using AllReduce::enqueue;
  Ticket enqueue(DeviceView values, const Request& request) override;
  Range chunk(std::size_t count) const override { return algorithm_->chunk(count); }
  void wait(Ticket ticket) override;
  void join(Ticket ticket) override;
  void abandon() noexcept override;
  void continue_in(const World& world) override;

 private:
  struct Job {
    std::span<float> values;
    std::size_t bucket;
    Collective collective;
  };

  void stop();
  void work();
  void run_to(Ticket ticket);                         // returns when the algorithm has completed it
  void run_next(std::unique_lock<std::mutex>& lock);  // the oldest job that has not begun; unlocked meanwhile

  bool idle() const { return !running_ && next_job_ < jobs_.size(); }

  const std::string name_, why_;
  std::unique_ptr<AllReduceAlgorithm> algorithm_;
  LaneOrder host_order_;
  LaneOrder& order_;
  std::size_t worth_waking_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable work_there_, completed_;
  std::vector<Job> jobs_;  // in order; jobs before next_job_ have begun
  std::size_t next_job_ = 0;
  bool running_ = false;  // some thread is in algorithm_
  bool wake_ = false;     // a job that has not begun is worth waking for
  Ticket last_enqueued_ = 0;
  Ticket last_completed_ = 0;
  std::exception_ptr failure_;
  bool stopping_ = false;

  std::jthread thread_;  // last, because it uses all members above
};

}  // namespace annulus
