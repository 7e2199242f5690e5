#pragma once

#include <optional>

#include "kernels/operations/convolution.h"

namespace annulus {

// Returns a convolution without a stride that computes the same from images in which each block, stride.height x
// stride.width pixels, is stored as a pixel with all channels in the block, row by row. (Blocks that reach over the
// images' edge have zeros there.) A weight in row r is in row (r + skipped) / stride then, for the block's row
// (r + skipped) % stride; skipped is stride x the result's padding at the top - padding at the top. Likewise for
// columns. A block's other weights are zero. `input`: {batch, channels,
// height, width}. Returns nothing if the convolution has no stride, or has groups or dilation, or if blocks at the end
// would have to be left out.
std::optional<Convolution> over_blocks(const Convolution& convolution, const Shape& input);

}  // namespace annulus
