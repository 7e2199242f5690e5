#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "collectives/annulus_collectives.h"
#include "collectives/call.h"
#include "collectives/library/call_algorithm.h"
#include "collectives/library/watch.h"
#include "collectives/world/world.h"
#include "kernels/base/tensor.h"

namespace annulus {

// Ranks that run calls together, in starting order, on a separate thread or in wait(): as in AllReduceWorker, a caller
// that has nothing else to do saves the hand-over. annulus_collectives.h has the
// contracts.
class Group {
 public:
  using MakeAlgorithm = std::unique_ptr<CallAlgorithm>(const World& world);

  // Collective. Throws Error; StartTimeout if not all ranks complete the start.
  Group(World world, MakeAlgorithm& make_algorithm, double timeout_seconds);
  ~Group();

  int rank() const { return world_.rank(); }
  int size() const { return world_.size(); }
  const std::string& description() const { return algorithm_->description(); }
  std::optional<Failure> failure() const;

  std::byte* allocate(std::size_t bytes);  // throws Error
  bool free(std::byte* memory);            // false if allocate() did not return it

  annulus_status start(const Call& call, const annulus_completion& completion, annulus_work& work);
  bool started(annulus_work work) const;
  annulus_status wait(annulus_work work, double seconds);  // REQUIRES: started()
  annulus_status test(annulus_work work);
  annulus_status finish();  // after it only the destructor may be called
  void leave(const std::string& reason);
  void fail(const Failure& failure);

 private:
  struct Job {
    Call call;
    annulus_completion completion;
  };

  void work();
  void run_next(std::unique_lock<std::mutex>& lock);  // the oldest job that has not begun; unlocked meanwhile
  bool idle() const { return !running_ && !jobs_.empty(); }
  annulus_status status_of(annulus_work work) const;
  std::optional<Failure> run(const Call& call);
  Watch::Position position() const;

  World world_;
  std::unique_ptr<CallAlgorithm> algorithm_;

  std::mutex allocation_;                              // held while a thread allocates
  std::map<const std::byte*, Buffer> process_memory_;  // if there is no shared memory

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable work_there_, completed_;
  std::deque<Job> jobs_;  // not begun
  bool running_ = false;  // some thread is in algorithm_
  bool wake_ = false;     // a job that has not begun is worth waking for
  int waiting_ = 0;       // threads in wait()
  annulus_work started_ = 0, ended_ = 0;
  std::optional<Failure> failure_;
  bool stopping_ = false;
  Call current_;                 // if running_
  std::size_t allocating_ = 0;   // bytes; 0: nothing
  std::uint64_t allocated_ = 0;  // times

  std::unique_ptr<Watch> watch_;
  std::jthread thread_;  // last, because it uses all members above
};

}  // namespace annulus
