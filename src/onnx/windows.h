#pragma once

#include "kernels/base/extent.h"
#include "kernels/base/tensor.h"
#include "src/onnx/attributes.h"

namespace annulus {

// Attributes of convolutions and pools. All throw Error if a value is not possible.

std::size_t checked_extent(std::int64_t value, const char* attribute, std::int64_t least = 1);

// Throws Error unless both are {., ., height, width}.
void expect_images(const Shape& images, const Shape& weights);

// Throws Error unless the window attributes are for this many dimensions, or missing.
void expect_windows(const Attributes& attributes, std::size_t dimensions);

// Returns an attribute for rows and columns, or for the columns of single-row images; 1 if it is missing.
Extent extent(const Attributes& attributes, const char* name, std::int64_t least = 1);

// The padding by the attributes pads and auto_pad.
Border border(const Attributes& attributes, const Shape& images, const Extent& kernel, const Extent& stride,
              const Extent& dilation);

}  // namespace annulus
