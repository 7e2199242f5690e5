#include "kernels/resize_taps.h"

#include <algorithm>
#include <cmath>

namespace annulus {
namespace {

double coordinate(Resize::Coordinates kind, std::size_t output, std::size_t inputs, std::size_t outputs) {
  const auto i = static_cast<double>(output), in = static_cast<double>(inputs), out = static_cast<double>(outputs);
  switch (kind) {
    case Resize::Coordinates::half_pixel:
      return (i + 0.5) * in / out - 0.5;
    case Resize::Coordinates::align_corners:
      return outputs > 1 ? i * (in - 1) / (out - 1) : 0;
    case Resize::Coordinates::asymmetric:
      break;
  }
  return i * in / out;
}

}  // namespace

std::vector<ResizeTap> resize_taps(const Resize& resize, std::size_t inputs, std::size_t outputs) {
  std::vector<ResizeTap> taps;
  const auto last = static_cast<double>(inputs - 1);
  for (std::size_t output = 0; output < outputs; ++output) {
    const double place = coordinate(resize.coordinates, output, inputs, outputs);
    if (resize.linear) {
      const double clamped = std::clamp(place, 0.0, last), first = std::floor(clamped);
      const auto pixel = static_cast<std::size_t>(first);
      const auto weight = static_cast<float>(clamped - first);
      taps.push_back({pixel, std::min(pixel + 1, inputs - 1), 1 - weight, weight});
    } else {
      const bool down = resize.coordinates == Resize::Coordinates::asymmetric;
      const double nearest = down ? std::floor(place) : std::ceil(place - 0.5);
      const auto pixel = static_cast<std::size_t>(std::clamp(nearest, 0.0, last));
      taps.push_back({pixel, pixel, 1, 0});
    }
  }
  return taps;
}

}  // namespace annulus
