#include <algorithm>

#include "kernels/base/error.h"
#include "src/onnx/reader.h"
#include "src/onnx/windows.h"

// Col2Im: images from patches, with overlaps added up.
namespace annulus {
namespace {

struct Patches {
  Extent image, block, stride, dilation;
  Border padding;

  std::size_t count(std::size_t pixels, std::size_t size, std::size_t step, std::size_t apart,
                    std::size_t around) const {
    const std::size_t covered = apart * (size - 1) + 1;
    if (pixels + around < covered) fail("its patches are larger than the image");
    return (pixels + around - covered) / step + 1;
  }
  std::size_t rows() const {
    return count(image.height, block.height, stride.height, dilation.height, padding.height());
  }
  std::size_t columns() const { return count(image.width, block.width, stride.width, dilation.width, padding.width()); }
};

// For each image pixel, the elements in all patches {block pixels, patches} that are added up.
std::vector<std::vector<std::size_t>> pixels_of(const Patches& p) {
  std::vector<std::vector<std::size_t>> all(p.image.area());
  const std::size_t rows = p.rows(), columns = p.columns();
  for (std::size_t k = 0; k < p.block.area(); ++k)
    for (std::size_t patch = 0; patch < rows * columns; ++patch) {
      const std::size_t y = patch / columns * p.stride.height + k / p.block.width * p.dilation.height;
      const std::size_t x = patch % columns * p.stride.width + k % p.block.width * p.dilation.width;
      if (y < p.padding.top || x < p.padding.left) continue;
      const std::size_t row = y - p.padding.top, column = x - p.padding.left;
      if (row < p.image.height && column < p.image.width)
        all[row * p.image.width + column].push_back(k * rows * columns + patch);
    }
  return all;
}

Extent two(const std::vector<std::int64_t>& values, const char* name) {
  if (values.size() != 2) fail("its {} is for {} dimensions, but images have 2", name, values.size());
  return {checked_extent(values[0], name), checked_extent(values[1], name)};
}

// Adds up, for each pixel, the first element, then the second, ...; 0 if there are no more.
void read_patches(NodeReader& n) {
  const Value x = n.value(0);
  const Shape in = n.shape(x);
  expect_windows(n.attributes, 2);
  Patches p{two(n.wholes(1), "image_shape"), two(n.wholes(2), "block_shape"), extent(n.attributes, "strides"),
            extent(n.attributes, "dilations"), 0};
  p.padding = border(n.attributes, {1, 1, p.image.height, p.image.width}, p.block, p.stride, p.dilation);
  const std::size_t patches = p.rows() * p.columns(), size = p.block.area();
  if (in.size() != 3 || in[1] % size != 0 || in[2] != patches)
    fail("its input of {} does not fit {} patches of {} pixels", to_string(in), patches, size);
  if (size > kMostConstantElements / patches) fail("its patches have too many elements");
  const auto from = pixels_of(p);
  std::size_t most = 1;
  for (const auto& pixel : from) most = std::max(most, pixel.size());
  const Shape flat{in[0], in[1] / size, size * patches};
  const Value padded = n.add(Pad{{0, 0, 0}, {0, 0, 1}}, {n.reshape(x, flat, 0)});
  std::optional<Value> sum;
  for (std::size_t i = 0; i < most; ++i) {
    std::vector<std::size_t> indices;
    for (const auto& pixel : from) indices.push_back(i < pixel.size() ? pixel[i] : flat[2]);
    const Value term = n.gather(padded, 2, indices);
    sum = sum ? n.combine(Arithmetic::Operator::sum, *sum, term) : term;
  }
  n.set(n.reshape(*sum, {flat[0], flat[1], p.image.height, p.image.width}, 0));
}

}  // namespace

void add_patches(ReadNodes& all) {
  all["Col2Im"] = read_patches;
}

}  // namespace annulus
