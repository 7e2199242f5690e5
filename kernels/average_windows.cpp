#include "kernels/average_windows.h"

#include <algorithm>

namespace annulus {
namespace {

// Windows begin and end in output order, so a pixel's readers are neighbours.
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

// An average pool's axis, in pixels.
struct PoolAxis {
  std::size_t kernel, stride, before, after, overhang;
  bool count_padding;
};

AverageAxis axis_of(const PoolAxis& pool, std::size_t pixels) {
  AverageAxis axis;
  const std::size_t padded = pool.before + pixels + pool.after, outputs = (padded - pool.kernel) / pool.stride + 1;
  const auto inside = [&](std::size_t place) { return std::clamp(place, pool.before, pool.before + pixels); };
  for (std::size_t begin = 0; axis.windows.size() < outputs; begin += pool.stride) {
    const Range window{inside(begin) - pool.before, inside(begin + pool.kernel) - pool.before};
    const std::size_t covered = std::min(begin + pool.kernel, padded - pool.overhang) - begin;
    axis.windows.push_back(window);
    axis.factors.push_back(1 / static_cast<float>(pool.count_padding ? covered : window.size()));
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
  const auto& [kernel, stride, padding, count_padding, overhang] = pool;
  return {
      axis_of({kernel.height, stride.height, padding.top, padding.bottom, overhang.height, count_padding}, input[2]),
      axis_of({kernel.width, stride.width, padding.left, padding.right, overhang.width, count_padding}, input[3])};
}

AverageWindows average_windows(const AdaptiveAveragePool& pool, const Shape& input) {
  return {axis_of(pool.size.height, input[2]), axis_of(pool.size.width, input[3])};
}

}  // namespace annulus
