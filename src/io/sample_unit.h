#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace annulus {

// What speeds count: "images", or the windows' "tokens", and their number in a sample.
struct SampleUnit {
  SampleUnit() = default;
  explicit SampleUnit(std::size_t window_length)  // 0: images
      : name(window_length > 0 ? "tokens" : "images"), each(window_length > 0 ? window_length : 1) {}

  double count(std::size_t samples) const { return static_cast<double>(samples * each); }

  // "images_per_second", a speed's name in JSON.
  std::string speed_name() const { return std::string(name) + "_per_second"; }

  std::string_view name = "images";
  std::size_t each = 1;
};

}  // namespace annulus
