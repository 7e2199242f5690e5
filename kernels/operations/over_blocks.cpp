#include "kernels/operations/over_blocks.h"

namespace annulus {
namespace {

// Windows along a dimension. `before` and `after`: padding.
struct Windows {
  std::size_t size, before, after;
};

std::size_t divided(std::size_t count, std::size_t divisor) {
  return (count + divisor - 1) / divisor;
}

// `number`: how many windows.
std::optional<Windows> windows_over_blocks(const Windows& windows, std::size_t stride, std::size_t pixels,
                                           std::size_t number) {
  const std::size_t before = divided(windows.before, stride), skipped = stride * before - windows.before;
  const std::size_t size = divided(windows.size + skipped, stride), blocks = divided(pixels, stride);
  if (number + size < blocks + before + 1) return std::nullopt;
  return Windows{size, before, number + size - blocks - before - 1};
}

}  // namespace

std::optional<Convolution> over_blocks(const Convolution& convolution, const Shape& input) {
  const Extent &kernel = convolution.kernel, &stride = convolution.stride;
  const Border& padding = convolution.padding;
  if (stride == 1 || convolution.groups > 1 || convolution.dilation != 1) return std::nullopt;
  const Shape output = convolution.output_shape({input});
  const auto rows =
      windows_over_blocks({kernel.height, padding.top, padding.bottom}, stride.height, input[2], output[2]);
  const auto columns =
      windows_over_blocks({kernel.width, padding.left, padding.right}, stride.width, input[3], output[3]);
  if (!rows || !columns) return std::nullopt;
  Convolution same = convolution;
  same.kernel = {rows->size, columns->size};
  same.stride = 1;
  same.padding = {rows->before, columns->before, rows->after, columns->after};
  return same;
}

}  // namespace annulus
