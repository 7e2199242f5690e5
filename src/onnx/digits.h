#pragma once

#include <string_view>

namespace annulus {

// Whether a text has digits only, and at least a digit.
inline bool is_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

}  // namespace annulus
