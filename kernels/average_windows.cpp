#include "kernels/average_windows.h"

#include <algorithm>

namespace annulus {
namespace {

// Windows begin and end in the order of their outputs, so the readers of a pixel are neighbours.
AverageAxis with_readers(AverageAxis axis, std::size_t pixels) {
  const auto& windows = axis.windows;
  for (std::size_t pixel = 0; pixel < pixels; ++pixel) {
    const auto first = std::ranges::upper_bound(windows, pixel, {}, &Range::end);
    const auto end = std::ranges::upper_bound(windows, pixel, {}, &Range::begin);
    const auto number = [&](auto window) { return static_cast<std::size_t>(window - windows.begin()); };
    axis.readers.push_back({number(std::min(first, end)), number(end)});
  }
  return axis;
}

AverageAxis axis_of(const AveragePool& pool, std::size_t pixels) {
  AverageAxis axis;
  const std::size_t outputs = (pixels + 2 * pool.padding - pool.kernel) / pool.stride + 1;
  const auto inside = [&](std::size_t padded) { return std::clamp(padded, pool.padding, pool.padding + pixels); };
  for (std::size_t begin = 0; axis.windows.size() < outputs; begin += pool.stride) {
    axis.windows.push_back({inside(begin) - pool.padding, inside(begin + pool.kernel) - pool.padding});
    axis.factors.push_back(1 / static_cast<float>(pool.kernel));
  }
  return with_readers(axis, pixels);
}

AverageAxis axis_of(std::size_t outputs, std::size_t pixels) {
  AverageAxis axis;
  for (std::size_t i = 0; i < outputs; ++i) {
    const Range window{i * pixels / outputs, ((i + 1) * pixels + outputs - 1) / outputs};
    axis.windows.push_back(window);
    axis.factors.push_back(1 / static_cast<float>(window.size()));
  }
  return with_readers(axis, pixels);
}

}  // namespace

AverageWindows average_windows(const AveragePool& pool, const Shape& input) {
  return {axis_of(pool, input[2]), axis_of(pool, input[3])};
}

AverageWindows average_windows(const AdaptiveAveragePool& pool, const Shape& input) {
  return {axis_of(pool.size.height, input[2]), axis_of(pool.size.width, input[3])};
}

}  // namespace annulus
