#include "kernels/operations/pool.h"

#include <algorithm>

#include "kernels/base/error.h"
#include "kernels/operations/shapes.h"

namespace annulus {
namespace {

// Throws Error unless the first and the last window contain pixels.
void expect_pixels(std::string_view operation, std::size_t pixels, std::size_t kernel, std::size_t stride,
                   std::size_t before, std::size_t after) {
  const std::size_t last = (pixels + before + after - kernel) / stride * stride;
  if (before >= kernel || last >= before + pixels)
    fail("{}: padding {} and {} leaves windows of {} without a pixel: use less padding", operation, before, after,
         kernel);
}

}  // namespace

Shape MaxPool::output_shape(const Shapes& inputs) const {
  const Shape& in = inputs[0];
  expect_images(in, kName);
  if (kernel.area() > kMostPixels)
    fail("max pool windows of {}x{} are too large: at most {} pixels", kernel.height, kernel.width, kMostPixels);
  const Shape out = windows(in, in[1], kernel, stride, padding);
  expect_pixels(kName, in[2], kernel.height, stride.height, padding.top, padding.bottom);
  expect_pixels(kName, in[3], kernel.width, stride.width, padding.left, padding.right);
  return out;
}

Shape AveragePool::output_shape(const Shapes& inputs) const {
  expect_images(inputs[0], kName);
  if (overhang.height > padding.bottom || overhang.width > padding.right)
    fail("average pool: an overhang of {}x{} is more than the padding", overhang.height, overhang.width);
  const Shape out = windows(inputs[0], inputs[0][1], kernel, stride, padding);
  if (count_padding) return out;
  expect_pixels(kName, inputs[0][2], kernel.height, stride.height, padding.top, padding.bottom);
  expect_pixels(kName, inputs[0][3], kernel.width, stride.width, padding.left, padding.right);
  return out;
}

Shape AdaptiveAveragePool::output_shape(const Shapes& inputs) const {
  expect_images(inputs[0], kName);
  return {inputs[0][0], inputs[0][1], size.height, size.width};
}

Shape Mean::output_shape(const Shapes& inputs) const {
  const Shape& in = inputs[0];
  Shape out;
  for (std::size_t i = 0; i < in.size(); ++i) {
    const bool reduced = std::ranges::find(axes, i) != axes.end();
    if (!reduced) out.push_back(in[i]);
    if (reduced && keep) out.push_back(1);
  }
  if (axes.empty() || axes.back() >= in.size()) fail("mean over a dimension that {} does not have", to_string(in));
  return out;
}

}  // namespace annulus
