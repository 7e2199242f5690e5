#include "src/torch/annulus_torch/operation.h"

#include <utility>

namespace annulus {

std::string text_of(const annulus_group* group, annulus_status status) {
  if (status == ANNULUS_OK) return "";
  const std::string text = annulus_error_text(group);
  // The word by which PyTorch's users recognize it.
  return (status == ANNULUS_TIMEOUT ? "annulus: Timed out : " : "annulus: ") +
         (text.empty() ? "status " + std::to_string(status) : text);
}

bool Operation::wait(std::chrono::milliseconds timeout) {
  const auto limit = timeout == kNoTimeout ? timeout_ : timeout;
  for (const annulus_work work : works_) annulus_wait(group_.get(), work, std::chrono::duration<double>(limit).count());
  std::unique_lock lock(mutex_);
  const bool ended = cv_.wait_for(lock, limit, [this] { return completed_; });
  TORCH_CHECK_WITH(DistBackendError, ended, "annulus: ", c10d::opTypeToString(opType_), " did not end within ",
                   limit.count(), " ms");
  if (exception_) std::rethrow_exception(exception_);
  return true;
}

void Operation::ended(const std::string& error) {
  if (!error.empty()) {
    const std::lock_guard lock(mutex_);
    if (error_.empty()) error_ = error;
  }
  if (--parts_ == 0) end();
}

void Operation::end() {
  std::exception_ptr failure;
  try {
    TORCH_CHECK_WITH(DistBackendError, error_.empty(), error_);
    for (const auto& copy : copies_) copy();
  } catch (...) {
    failure = std::current_exception();
  }
  copies_.clear();
  kept_.clear();
  // Closes the profiler's record before callers continue that wait for the future: they may end the profile.
  if (recordFunctionEndCallback_) std::exchange(recordFunctionEndCallback_, nullptr)();
  if (failure)
    future_->setError(failure);
  else
    future_->markCompleted(c10::IValue(outputs_));
  finish(failure);
}

}  // namespace annulus
