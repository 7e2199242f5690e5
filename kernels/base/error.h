#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>

namespace annulus {

// The program's only exception class. The text is a single line for the user: what failed, where, and what to do about
// it. main() prints it once, with the rank, and ends the job on every rank.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

template <class... Arguments>
[[noreturn]] void fail(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  throw Error(fmt::format(format, std::forward<Arguments>(arguments)...));
}

}  // namespace annulus
