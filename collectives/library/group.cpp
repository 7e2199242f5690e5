#include "collectives/library/group.h"

#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "collectives/host/call_note.h"
#include "collectives/library/start_limit.h"
#include "kernels/base/error.h"
#include "kernels/base/host_memory.h"

namespace annulus {
Group::Group(World world, MakeAlgorithm& make_algorithm, double timeout_seconds) : world_(std::move(world)) {
  const StartLimit limit(world_, timeout_seconds);
  try {
    algorithm_ = make_algorithm(world_);
    watch_ = std::make_unique<Watch>(
        world_, timeout_seconds, [this] { return position(); }, [this](const Failure& failure) { fail(failure); });
  } catch (const std::exception&) {
    limit.expect_not_expired();
    throw;
  }
  watch_->start();
  thread_ = std::jthread([this] { work(); });
}

Group::~Group() {
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
  }
  work_there_.notify_one();
  thread_.join();
  watch_.reset();
}

std::optional<Failure> Group::failure() const {
  const std::scoped_lock lock(mutex_);
  return failure_;
}

std::byte* Group::allocate(std::size_t bytes) {
  const std::scoped_lock allocating(allocation_);
  const auto set_allocating = [this](std::size_t now) {
    const std::scoped_lock lock(mutex_);
    allocating_ = now;
    if (now > 0) ++allocated_;
  };
  set_allocating(bytes + 1);
  std::span<std::byte> memory;
  try {
    if (algorithm_->memory() != nullptr) memory = algorithm_->memory()->allocate(bytes);
  } catch (const NoSharedMemory&) {  // on all ranks of the node
  } catch (...) {
    set_allocating(0);
    throw;
  }
  set_allocating(0);
  if (memory.data() != nullptr) return memory.data();
  Buffer buffer = allocate_host(bytes);
  std::byte* const address = buffer.view().address;
  process_memory_.emplace(address, std::move(buffer));
  return address;
}

bool Group::free(std::byte* memory) {
  const std::scoped_lock allocating(allocation_);
  return process_memory_.erase(memory) > 0 || (algorithm_->memory() != nullptr && algorithm_->memory()->free(memory));
}

annulus_status Group::start(const Call& call, const annulus_completion& completion, annulus_work& work) {
  {
    const std::scoped_lock lock(mutex_);
    if (failure_) return failure_->status;
    jobs_.push_back({call, completion});
    work = ++started_;
    if (completion.waited_for != 0) return ANNULUS_OK;
    wake_ = true;
  }
  work_there_.notify_one();
  return ANNULUS_OK;
}

bool Group::started(annulus_work work) const {
  const std::scoped_lock lock(mutex_);
  return work <= started_;
}

annulus_status Group::status_of(annulus_work work) const {
  if (work <= ended_) return ANNULUS_OK;
  return failure_ && !running_ ? failure_->status : ANNULUS_PENDING;
}

annulus_status Group::test(annulus_work work) {
  const std::scoped_lock lock(mutex_);
  if (!jobs_.empty()) {
    wake_ = true;
    work_there_.notify_one();
  }
  return status_of(work);
}

annulus_status Group::wait(annulus_work work, double seconds) {
  std::unique_lock lock(mutex_);
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  if (waiting_++ == 0) algorithm_->context().backoff.set_urgent(true);
  annulus_status status = ANNULUS_PENDING;
  while ((status = status_of(work)) == ANNULUS_PENDING) {
    if (seconds > 0) {  // a call cannot be left
      wake_ = true;
      work_there_.notify_one();
      if (completed_.wait_until(lock, until) == std::cv_status::timeout) break;
    } else if (idle() && !failure_) {
      run_next(lock);
    } else {
      completed_.wait(lock);
    }
  }
  if (--waiting_ == 0) algorithm_->context().backoff.set_urgent(false);
  if (wake_ && idle()) work_there_.notify_one();  // it was woken while this thread was busy, and went back to sleep
  return status == ANNULUS_PENDING ? status_of(work) : status;
}

void Group::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    work_there_.wait(lock, [&] { return stopping_ || ((wake_ || failure_) && idle()); });
    if (stopping_) return;
    run_next(lock);
  }
}

void Group::run_next(std::unique_lock<std::mutex>& lock) {
  const Job job = std::move(jobs_.front());
  jobs_.pop_front();
  if (jobs_.empty()) wake_ = false;
  running_ = true;
  current_ = job.call;
  const annulus_work number = started_ - jobs_.size();
  std::optional<Failure> failure = failure_;
  lock.unlock();
  if (!failure) failure = run(job.call);
  if (failure) {
    fail(*failure);
    failure = this->failure();  // perhaps an earlier failure
  }
  if (job.completion.done != nullptr) job.completion.done(job.completion.data, failure ? failure->status : ANNULUS_OK);
  lock.lock();
  running_ = false;
  if (!failure) ended_ = number;
  completed_.notify_all();
}

std::optional<Failure> Group::run(const Call& call) {
  AllReduceProgress& progress = algorithm_->context().progress;
  try {
    progress.begin(0);
    algorithm_->run(call);
    progress.end(0);
    return std::nullopt;
  } catch (const CallMismatch& error) {
    return Failure{ANNULUS_MISMATCH, error.what()};
  } catch (const std::exception& error) {
    return Failure{ANNULUS_FAILED, fmt::format("{}: {}", to_string(call), error.what())};
  }
}

void Group::fail(const Failure& failure) {
  {
    const std::scoped_lock lock(mutex_);
    if (failure_) return;
    failure_ = failure;
  }
  watch_->report(failure);
  world_.interrupt(true);
  algorithm_->context().backoff.abandon();
  work_there_.notify_one();
  completed_.notify_all();
}

annulus_status Group::finish() {
  annulus_work last = 0;
  if (const annulus_status status = start({}, {.done = nullptr, .data = nullptr, .waited_for = 1}, last);
      status != ANNULUS_OK)
    return status;
  if (last > 1) wait(last - 1, 0);
  leave("finished");
  return wait(last, 0);
}

void Group::leave(const std::string& reason) {
  annulus_work last = 0;
  std::uint64_t allocated = 0;
  {
    const std::scoped_lock lock(mutex_);
    last = started_;
    allocated = allocated_;
  }
  watch_->leave(last, allocated, reason);
}

Watch::Position Group::position() const {
  const AllReduceProgress::Snapshot progress = algorithm_->context().progress.snapshot();
  const std::scoped_lock lock(mutex_);
  Watch::Position now{.busy = progress.begun != progress.ended || allocating_ > 0, .moves = progress.moves, .text = {}};
  if (allocating_ > 0) {
    now.allocation = allocated_;
    now.text = fmt::format(" in the allocation of {} bytes", allocating_ - 1);
  }
  if (!running_) return now;
  now.operation = started_ - jobs_.size();
  now.text = fmt::format(" in operation {}, {}", now.operation, to_string(current_));
  if (progress.peer != AllReduceProgress::kNobody)
    now.text += fmt::format(", waiting for {}", watch_->name(progress.peer));
  return now;
}

}  // namespace annulus
