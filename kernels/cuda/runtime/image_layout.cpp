#include "kernels/cuda/runtime/image_layout.h"

#include <fmt/format.h>

namespace annulus::cuda {

ImageBlocks::ImageBlocks(const Shape& images, const Extent& block, DataType type)
    : block_(block),
      pixels_(value_spec({images[0], images[1] * block.area(), (images[2] + block.height - 1) / block.height,
                          (images[3] + block.width - 1) / block.width},
                         type)) {}

std::string ImageBlocks::name() const {
  return fmt::format("blocks of {} x {} pixels, {}", block_.height, block_.width, pixels_.layout->name());
}

}  // namespace annulus::cuda
