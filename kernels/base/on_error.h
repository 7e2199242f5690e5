#pragma once

#include <exception>
#include <functional>
#include <utility>

namespace annulus {

// What is to be done where an exception ends the life of this: before that of all that was declared earlier beside it.
class OnError {
 public:
  // `action` throws nothing.
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
