#include "kernels/cuda/ops/loops/show_images.h"

#include "kernels/cuda/ops/loops/vectors.h"

namespace annulus::cuda {
namespace {

constexpr unsigned kThreads = 256;

__device__ int reflected(int position, int size) {
  const int last = size - 1;
  return last - abs(last - abs(position));
}

// A thread for each pixel.
__global__ void show(Predecessor previous, const std::uint8_t* set, const ShownImage* shown, PixelShape shape,
                     std::uint8_t* to, std::size_t pixels) {
  await(previous);
  const unsigned each = shape.height * shape.width;
  const int height = static_cast<int>(shape.height), width = static_cast<int>(shape.width);
  for (std::size_t i = grid_thread(); i < pixels; i += grid_threads()) {
    const ShownImage image = shown[i / each];
    const int x = static_cast<int>(i % each % shape.width);
    const int row = static_cast<int>(i % each / shape.width) - image.down;
    const int column = (image.mirrored != 0 ? width - 1 - x : x) - image.right;
    const bool inside = row >= 0 && row < height && column >= 0 && column < width;
    const std::size_t from =
        std::size_t{image.number} * each + reflected(row, height) * shape.width + reflected(column, width);
    for (unsigned c = 0; c < shape.channels; ++c)
      to[i * shape.channels + c] = inside || image.reflected != 0 ? set[from * shape.channels + c] : 0;
  }
}

}  // namespace

void show_images(DeviceView set, DeviceView shown, const PixelShape& shape, DeviceView to, const Context& context) {
  const std::size_t pixels = shown.bytes / sizeof(ShownImage) * shape.height * shape.width;
  if (pixels > 0)
    launch(show, blocks_for(pixels, kThreads, context.multiprocessors), kThreads, context.lane.get(),
           data<std::uint8_t>(set), data<ShownImage>(shown), shape, data<std::uint8_t>(to), pixels);
}

}  // namespace annulus::cuda
