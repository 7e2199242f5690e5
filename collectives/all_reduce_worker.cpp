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
          .all_verbs = info.all_verbs,
          .common = algorithm.common()};
}

AllReduceWorker::AllReduceWorker(std::unique_ptr<AllReduceAlgorithm> algorithm, const std::string& name,
                                 const std::string& why, std::size_t worth_waking, LaneOrder* order)
    : AllReduce(info_of(*algorithm, name, why), algorithm->context()),
      name_(name),
      why_(why),
      algorithm_(std::move(algorithm)),
      order_(order != nullptr ? *order : host_order_),
      worth_waking_(worth_waking),
      thread_([this] { work(); }) {}

AllReduceWorker::~AllReduceWorker() {
  abandon();
}

DeviceView AllReduceWorker::allocate(std::size_t bytes, Memory memory) {
  const auto allocated = algorithm_->allocate(bytes, memory);
  update(info_of(*algorithm_, name_, why_));
  return {allocated.data(), allocated.size()};
}

void AllReduceWorker::abandon() noexcept {
  context()->backoff.abandon();
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
  context()->backoff.resume();
  context()->progress.give_up();
  algorithm_->continue_in(world);
  jobs_.clear();
  next_job_ = 0;
  wake_ = stopping_ = false;
  last_enqueued_ = last_completed_ = 0;
  failure_ = nullptr;
  thread_ = std::jthread([this] { work(); });
}

AllReduce::Ticket AllReduceWorker::enqueue(DeviceView values, const Request& request) {
  expect_possible(request);
  const Collective collective{request.verb, request.exact};
  order_.begin(values, collective);
  const std::scoped_lock lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
  jobs_.push_back({floats(values), request.bucket, collective});
  if (request.next == Next::compute && values.bytes >= worth_waking_) {
    wake_ = true;
    work_there_.notify_one();
  }
  return ++last_enqueued_;
}

void AllReduceWorker::wait(Ticket ticket) {
  run_to(ticket);
  for (int polls = 0; !order_.done(ticket); ++polls) context()->backoff.pause(polls);
}

void AllReduceWorker::join(Ticket ticket) {
  run_to(ticket);
  order_.join(ticket);
}

void AllReduceWorker::run_to(Ticket ticket) {
  std::unique_lock lock(mutex_);
  context()->backoff.set_urgent(true);
  while (last_completed_ < ticket && !failure_)
    if (idle())
      run_next(lock);
    else
      completed_.wait(lock);
  context()->backoff.set_urgent(false);
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
    const TraceSpan span(context()->lane, name.text, name.number);
    context()->progress.begin(job.bucket);
    algorithm_->run(job.values, job.collective);
    context()->progress.end(algorithm_->bytes_sent());
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
