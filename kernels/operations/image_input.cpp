#include "kernels/operations/image_input.h"

#include "kernels/base/error.h"
#include "kernels/operations/shapes.h"

namespace annulus {

Shape ImageInput::output_shape(const Shapes& inputs) const {
  const Shape& in = inputs[0];
  expect_images(in, kName);
  if (mean.size() != in[3] || stddev.size() != in[3])
    fail("images have {} channels, but there are {} means and {} standard deviations", in[3], mean.size(),
         stddev.size());
  return {in[0], in[3], in[1], in[2]};
}

}  // namespace annulus
