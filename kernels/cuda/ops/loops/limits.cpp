#include "kernels/cuda/ops/loops/limits.h"

#include <limits>

#include "kernels/base/error.h"

namespace annulus::cuda {

unsigned vectors_of(const ChannelsLast& values) {
  const std::size_t vectors = values.bytes() / kVectorBytes;
  if (vectors > std::numeric_limits<unsigned>::max())
    fail("a tensor of {} bytes is too large: use a smaller batch", values.bytes());
  return static_cast<unsigned>(vectors);
}

void expect_countable(std::size_t elements) {
  if (elements > std::numeric_limits<unsigned>::max())
    fail("a tensor of {} elements is too large: use a smaller batch", elements);
}

void expect_dimensions(unsigned dimensions, unsigned most) {
  if (dimensions > most) fail("GPUs do not support tensors of more than {} dimensions in such orders", most);
}

void expect_extra(const Extent& extra, const Extent& stride) {
  if (extra.height >= stride.height || extra.width >= stride.width)
    fail("GPUs do not support transposed convolutions with {}x{} extra pixels and a stride of {}x{}: use --device cpu",
         extra.height, extra.width, stride.height, stride.width);
}

void expect_blocks(const Range& slice, std::size_t block) {
  if (slice.begin % block != 0 || slice.end % block != 0)
    fail("parameters {} to {} of an arena are not whole blocks of {}", slice.begin, slice.end, block);
}

}  // namespace annulus::cuda
