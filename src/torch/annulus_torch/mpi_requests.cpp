#include "src/torch/annulus_torch/mpi_requests.h"

#include <stdexcept>

namespace annulus {

MpiRequests::MpiRequests(const Communicator& communicator)
    : communicator_(communicator.handle()), several_nodes_(!communicator.one_node()), thread_([this] { work(); }) {}

MpiRequests::~MpiRequests() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  added_.notify_one();
  thread_.join();
  fail_all("the process group was destroyed");
}

void MpiRequests::add(const std::function<void(MPI_Request&)>& start, Clock::time_point deadline, Done done) {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_.empty()) throw std::runtime_error("annulus: " + failure_);
    Pending pending{MPI_REQUEST_NULL, deadline, std::move(done)};
    start(pending.request);
    pending_.push_back(std::move(pending));
  }
  added_.notify_one();
}

void MpiRequests::fail_all(const std::string& error) {
  std::list<Pending> failed;
  {
    const std::lock_guard lock(mutex_);
    failure_ = error;
    failed.swap(pending_);
  }
  for (const Pending& pending : failed) pending.done(error, {});
}

// Long waits must not keep a processor from computing.
void MpiRequests::work() {
  constexpr auto longest = std::chrono::microseconds(500), idle = std::chrono::microseconds(1000);
  auto pause = std::chrono::microseconds(1);
  while (true) {
    {
      std::unique_lock lock(mutex_);
      const auto wanted = [this] { return stopping_ || !pending_.empty(); };
      while (!wanted()) {
        if (!several_nodes_) {
          added_.wait(lock, wanted);
        } else if (!added_.wait_for(lock, idle, wanted)) {
          int arrived = 0;
          MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, communicator_, &arrived, MPI_STATUS_IGNORE);
        }
      }
      if (stopping_) return;
    }
    if (progress()) {
      pause = std::chrono::microseconds(1);
    } else {
      std::this_thread::sleep_for(pause);
      pause = std::min(2 * pause, longest);
    }
  }
}

bool MpiRequests::progress() {
  std::list<Pending> ended;
  std::list<std::pair<std::string, MPI_Status>> results;
  {
    const std::lock_guard lock(mutex_);
    for (auto pending = pending_.begin(); pending != pending_.end();) {
      const auto next = std::next(pending);
      int complete = 0;
      MPI_Status status{};
      std::string error;
      try {
        check_mpi(MPI_Test(&pending->request, &complete, &status));
      } catch (const std::exception& failure) {
        error = failure.what();
      }
      if (!complete && error.empty() && Clock::now() > pending->deadline) error = "timeout";
      if (complete || !error.empty()) {
        ended.splice(ended.end(), pending_, pending);
        results.emplace_back(error, status);
      }
      pending = next;
    }
  }
  auto result = results.begin();
  for (const Pending& pending : ended) {
    pending.done(result->first, result->second);
    ++result;
  }
  return !ended.empty();
}

}  // namespace annulus
