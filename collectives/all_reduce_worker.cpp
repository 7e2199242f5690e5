#include "collectives/all_reduce_worker.h"

#include <utility>

namespace annulus {

AllReduceWorker::AllReduceWorker(std::unique_ptr<SumAlgorithm> algorithm, std::shared_ptr<Patience> patience,
                                 std::string description)
    : algorithm_(std::move(algorithm)),
      patience_(std::move(patience)),
      description_(std::move(description)),
      thread_([this] { work(); }) {}

AllReduceWorker::~AllReduceWorker() {
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
  }
  patience_->abandon();
  enqueued_.notify_one();
}

AllReduce::Ticket AllReduceWorker::enqueue(std::span<float> values) {
  const std::scoped_lock lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
  jobs_.push_back(values);
  enqueued_.notify_one();
  return ++last_enqueued_;
}

void AllReduceWorker::wait(Ticket ticket) {
  std::unique_lock lock(mutex_);
  patience_->set_urgent(true);
  completed_.wait(lock, [&] { return last_completed_ >= ticket || failure_; });
  patience_->set_urgent(false);
  if (failure_) std::rethrow_exception(failure_);
}

void AllReduceWorker::work() {
  try {
    // Two vectors change places: enqueue() fills one while this thread empties the other, and both keep their memory.
    for (Jobs jobs; take(jobs); jobs.clear())
      for (const std::span<float> values : jobs) {
        algorithm_->sum(values);
        bytes_sent_ = algorithm_->bytes_sent();
        if (!complete_one()) return;
      }
  } catch (...) {
    fail_with(std::current_exception());
  }
}

bool AllReduceWorker::take(Jobs& jobs) {
  std::unique_lock lock(mutex_);
  enqueued_.wait(lock, [&] { return stopping_ || !jobs_.empty(); });
  jobs.swap(jobs_);
  return !stopping_;
}

bool AllReduceWorker::complete_one() {
  const std::scoped_lock lock(mutex_);
  ++last_completed_;
  completed_.notify_one();
  return !stopping_;
}

void AllReduceWorker::fail_with(std::exception_ptr failure) {
  const std::scoped_lock lock(mutex_);
  failure_ = std::move(failure);
  completed_.notify_one();
}

}  // namespace annulus
