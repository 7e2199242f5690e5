#pragma once

#include <string>

namespace annulus {

// The values of pixels that a network reads.
enum class Pixels {
  automatic,   // as its first operations suggest (input_normalization.h)
  normalized,  // with the mean and std of the data
  to_one,      // 0 to 1
  to_255,      // 0 to 255
};

// "auto", "normalized", "0..1" or "0..255".
const char* name(Pixels pixels);
Pixels parse_pixels(const std::string& text);  // throws Error if it is none of them

}  // namespace annulus
