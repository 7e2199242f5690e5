#pragma once

#include <exception>
#include <functional>
#include <utility>

namespace annulus {

// Runs an action if an exception leaves the scope, before the objects declared earlier in the scope are destroyed.
class OnError {
 public:
  // REQUIRES: `action` does not throw.
  explicit OnError(std::function<void()> action) : action_(std::move(action)) {}
  ~OnError() {
    if (std::uncaught_exceptions() > uncaught_) action_();
  }
  OnError(const OnError&) = delete;
  OnError& operator=(const OnError&) = delete;

 private:
  const int uncaught_ = std::uncaught_exceptions();
  const std::function<void()> action_;
};

}  // namespace annulus
