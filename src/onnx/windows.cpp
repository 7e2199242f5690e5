#include "src/onnx/windows.h"

#include <algorithm>

#include "kernels/base/error.h"

namespace annulus {
namespace {

constexpr std::int64_t kMost = 1 << 20;

// Padding that makes the output as large as the input, divided by the stride.
std::size_t same_padding(std::size_t pixels, std::size_t kernel, std::size_t stride, std::size_t dilation) {
  const std::size_t outputs = (pixels + stride - 1) / stride, window = dilation * (kernel - 1) + 1;
  const std::size_t wanted = (outputs - 1) * stride + window;
  return wanted > pixels ? wanted - pixels : 0;
}

}  // namespace

std::size_t checked_extent(std::int64_t value, const char* attribute, std::int64_t least) {
  if (value < least || value > kMost) fail("its {} is {}", attribute, value);
  return static_cast<std::size_t>(value);
}

void expect_images(const Shape& images, const Shape& weights) {
  for (const Shape& shape : {images, weights})
    if (shape.size() != 4) fail("its input of {} is not supported: use two-dimensional images", to_string(shape));
}

void expect_windows(const Attributes& attributes, std::size_t dimensions) {
  const auto expect = [&](const char* name, std::size_t each) {
    const std::size_t values = attributes.wholes(name).size();
    if (values != 0 && values != each * dimensions)
      fail("its {} are for {} dimensions, but its input has {}", name, values / each, dimensions);
  };
  for (const char* name : {"kernel_shape", "strides", "dilations", "output_padding"}) expect(name, 1);
  expect("pads", 2);
}

Extent extent(const Attributes& attributes, const char* name, std::int64_t least) {
  const auto values = attributes.wholes(name);
  if (values.empty()) return 1;
  if (values.size() == 1) return {static_cast<std::size_t>(least), checked_extent(values[0], name, least)};
  if (values.size() != 2) fail("its {} are for {} dimensions, but images have 2", name, values.size());
  return {checked_extent(values[0], name, least), checked_extent(values[1], name, least)};
}

Border border(const Attributes& attributes, const Shape& images, const Extent& kernel, const Extent& stride,
              const Extent& dilation) {
  const std::string automatic = attributes.text("auto_pad", "NOTSET");
  if (automatic == "SAME_UPPER" || automatic == "SAME_LOWER") {
    const std::size_t rows = same_padding(images[2], kernel.height, stride.height, dilation.height);
    const std::size_t columns = same_padding(images[3], kernel.width, stride.width, dilation.width);
    const std::size_t top = automatic == "SAME_UPPER" ? rows / 2 : rows - rows / 2;
    const std::size_t left = automatic == "SAME_UPPER" ? columns / 2 : columns - columns / 2;
    return {top, left, rows - top, columns - left};
  }
  const auto pads = attributes.wholes("pads");
  if (automatic == "VALID" || pads.empty()) return 0;
  if (pads.size() == 2) return {0, checked_extent(pads[0], "pads", 0), 0, checked_extent(pads[1], "pads", 0)};
  if (pads.size() != 4) fail("its pads are for {} sides, but images have 4", pads.size());
  std::size_t sides[4];
  for (std::size_t i = 0; i < 4; ++i) sides[i] = checked_extent(pads[i], "pads", 0);
  return {sides[0], sides[1], sides[2], sides[3]};
}

}  // namespace annulus
