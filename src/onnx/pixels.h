#pragma once

#include <string>

namespace annulus {

// The pixel values that a network reads.
enum class Pixels {
  automatic,   // as the network's first operations suggest (input_normalization.h)
  normalized,  // with the data's mean and std
  to_one,      // 0 to 1
  to_255,      // 0 to 255
};

// "auto", "normalized", "0..1" or "0..255".
const char* name(Pixels pixels);
Pixels parse_pixels(const std::string& text);  // throws Error for any other text

}  // namespace annulus
