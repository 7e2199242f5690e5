#pragma once

#include "kernels/base/extent.h"
#include "kernels/cuda/runtime/layout.h"

namespace annulus::cuda {

// Images in pixel blocks, each stored as a pixel with all channels in the block, row by row:
// {batch, channels, height, width} is stored as {batch, rows, columns, (block.height x block.width x channels)'}.
// Blocks that reach over the images' edge have zeros there.
class ImageBlocks final : public Layout {
 public:
  ImageBlocks(const Shape& images, const Extent& block, DataType type);

  std::size_t bytes() const override { return pixels_.layout->bytes(); }
  std::string name() const override;

  const Extent& block() const { return block_; }
  const TensorSpec& pixels() const { return pixels_; }  // the same memory as images with fewer pixels and more channels

 private:
  Extent block_;
  TensorSpec pixels_;
};

}  // namespace annulus::cuda
