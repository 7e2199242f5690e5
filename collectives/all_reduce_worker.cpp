#include "collectives/all_reduce_worker.h"

#include <fmt/format.h>

#include <utility>

namespace annulus {

AllReduceInfo info_of(const AllReduceAlgorithm& algorithm, const std::string& name, const std::string& why) {
  const AllReduceAlgorithm::Info& info = algorithm.info();
  const std::string way = algorithm.way();
  return {.description = fmt::format("{}{}{} ({})", name, way.empty() ? "" : ", ", way, why),
          .order = info.order,
          .crossover = info.crossover,
          .wire = info.wire,
          .halves = info.halves};
}

AllReduceWorker::AllReduceWorker(std::unique_ptr<AllReduceAlgorithm> algorithm,
                                 std::shared_ptr<AllReduceContext> context, const std::string& name,
                                 const std::string& why, std::size_t worth_waking)
    : AllReduce(info_of(*algorithm, name, why)),
      name_(name),
      why_(why),
      algorithm_(std::move(algorithm)),
      context_(std::move(context)),
      worth_waking_(worth_waking),
      thread_([this] { work(); }) {}

AllReduceWorker::~AllReduceWorker() {
  abandon();
}

DeviceView AllReduceWorker::allocate(std::size_t bytes) {
  const auto memory = algorithm_->allocate(bytes);
  describe(info_of(*algorithm_, name_, why_).description);
  return {memory.data(), memory.size()};
}

void AllReduceWorker::abandon() noexcept {
  context_->backoff.abandon();
  stop();
}

void AllReduceWorker::stop() {
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
  }
  work_there_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void AllReduceWorker::continue_in(const World& world) {
  abandon();
  context_->backoff.resume();
  context_->progress.give_up();
  algorithm_->continue_in(world);
  jobs_.clear();
  next_job_ = 0;
  wake_ = stopping_ = false;
  last_enqueued_ = last_completed_ = 0;
  failure_ = nullptr;
  thread_ = std::jthread([this] { work(); });
}

AllReduce::Ticket AllReduceWorker::add(const Job& job, Next next) {
  algorithm_->begin({reinterpret_cast<std::byte*>(job.values.data()), job.values.size_bytes()});
  const std::scoped_lock lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
  jobs_.push_back(job);
  if (next == Next::compute && job.values.size_bytes() >= worth_waking_) {
    wake_ = true;
    work_there_.notify_one();
  }
  return ++last_enqueued_;
}

void AllReduceWorker::wait(Ticket ticket) {
  run_to(ticket);
  for (int polls = 0; !algorithm_->done(ticket); ++polls) context_->backoff.pause(polls);
}

void AllReduceWorker::join(Ticket ticket) {
  run_to(ticket);
  algorithm_->join(ticket);
}

void AllReduceWorker::run_to(Ticket ticket) {
  std::unique_lock lock(mutex_);
  context_->backoff.set_urgent(true);
  while (last_completed_ < ticket && !failure_)
    if (idle())
      run_next(lock);
    else
      completed_.wait(lock);
  context_->backoff.set_urgent(false);
  if (wake_ && idle()) work_there_.notify_one();  // it was woken while this thread was busy, and went back to sleep
  if (failure_) std::rethrow_exception(failure_);
}

void AllReduceWorker::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    work_there_.wait(lock, [&] { return stopping_ || failure_ || (wake_ && idle()); });
    if (stopping_ || failure_) return;
    run_next(lock);
  }
}

void AllReduceWorker::record_to(TraceLane* lane) {
  lane_ = lane;
  algorithm_->record_to(lane);
}

void AllReduceWorker::run_next(std::unique_lock<std::mutex>& lock) {
  const Job job = jobs_[next_job_++];
  if (next_job_ == jobs_.size()) {  // clear() keeps the memory
    jobs_.clear();
    next_job_ = 0;
    wake_ = false;
  }
  running_ = true;
  lock.unlock();
  std::exception_ptr failure;
  try {
    const AllReduceName name = name_of(job.bucket);
    const TraceSpan span(lane_, name.text, name.number);
    context_->progress.begin(job.bucket);
    (algorithm_.get()->*job.run)(job.values);
    context_->progress.end(algorithm_->bytes_sent());
  } catch (...) {
    failure = std::current_exception();
  }
  lock.lock();
  running_ = false;
  if (failure)
    failure_ = failure;
  else
    ++last_completed_;
  completed_.notify_one();
}

}  // namespace annulus
