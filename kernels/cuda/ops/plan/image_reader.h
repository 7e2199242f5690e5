#pragma once

#include <memory>

#include "kernels/cuda/runtime/image_layout.h"

namespace annulus::cuda {

// An operation that can read images in another layout, if nothing else reads them.
class ImageReader {
 public:
  virtual ~ImageReader() = default;

  // Returns the layout in which it wants to read the images from now on. To be called at most once, before bind().
  virtual std::shared_ptr<const ImageBlocks> take_blocks() = 0;
};

}  // namespace annulus::cuda
