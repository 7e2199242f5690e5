#pragma once

#include <catch2/catch.hpp>
#include <string>

#include "kernels/base/error.h"

namespace annulus::test {

// The text of the Error that `action` throws, which must be one line.
template <class Action>
std::string error_of(Action action) {
  try {
    action();
  } catch (const Error& error) {
    CHECK(std::string(error.what()).find('\n') == std::string::npos);
    return error.what();
  }
  FAIL("no Error was thrown");
  return {};
}

}  // namespace annulus::test
