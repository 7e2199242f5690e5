#include "kernels/cuda/ops/shaping/image_input.h"

#include <catch2/catch.hpp>

#include "tests/gpu/ops/gpu.h"
#include "tests/unit/random_values.h"

namespace annulus {
namespace {

using test::Gpu;
using test::GpuTensor;
using Values = std::vector<float>;

const ImageInput kInput{{0.5f, 0.1f, 0.0f}, {0.25f, 2.0f, 1.0f}};

float normalized(float pixel, std::size_t channel) {
  return (pixel / 255.0f - kInput.mean[channel]) / kInput.stddev[channel];
}

// The crop and flip of each image.
struct Crops {
  std::vector<std::int32_t> rows, columns;
  std::vector<std::uint8_t> mirrored;
};

// A reference for load_images(): row-major values of images {batch, 3, height, width}.
Values cropped(const std::vector<std::uint8_t>& pixels, const Shape& in, const Crops& crops, const Shape& out) {
  Values values;
  for (std::size_t n = 0; n < out[0]; ++n)
    for (std::size_t c = 0; c < out[1]; ++c)
      for (std::size_t y = 0; y < out[2]; ++y)
        for (std::size_t x = 0; x < out[3]; ++x) {
          const long row = static_cast<long>(y) + crops.rows[n], width = static_cast<long>(in[2]);
          long column = static_cast<long>(x) + crops.columns[n];
          if (crops.mirrored[n] != 0) column = width - 1 - column;
          const bool inside = row >= 0 && row < static_cast<long>(in[1]) && column >= 0 && column < width;
          const std::size_t pixel =
              (n * in[1] + static_cast<std::size_t>(row)) * in[2] + static_cast<std::size_t>(column);
          values.push_back(normalized(inside ? pixels[pixel * in[3] + c] : 0, c));
        }
  return values;
}

void check_close(const GpuTensor& tensor, const Values& expected) {
  const Values ours = tensor.read();
  for (std::size_t i = 0; i < ours.size(); ++i)
    REQUIRE(ours[i] == Approx(expected[i]).margin(2 * test::tolerance(tensor.gpu->context.precision)));
  CHECK(tensor.clean());
}

template <class T>
const T* uploaded(Gpu& gpu, const std::vector<T>& values, Buffer& to) {
  return reinterpret_cast<const T*>(test::upload(gpu.context, values.data(), values.size() * sizeof(T), to));
}

}  // namespace

TEST_CASE("on a GPU: pixels are scaled and normalized channel by channel") {
  Gpu gpu(GENERATE(from_range(std::begin(test::kPrecisions), std::end(test::kPrecisions))));
  for (const Shape& shape : {Shape{2, 9, 16, 3}, Shape{1, 1, 1, 3}}) {
    const auto pixels = test::random_pixels(elements(shape), 1);
    Buffer memory;
    uploaded(gpu, pixels, memory);
    const TensorSpec spec{shape, DataType::u8, std::make_shared<cuda::Plain>(shape, DataType::u8)};
    const auto op = cuda::plan(kInput, {spec}, Mode::training, gpu.context);
    REQUIRE(op->output().shape == Shape{shape[0], 3, shape[1], shape[2]});
    GpuTensor output(gpu, op->output(), Values(elements(shape), 77.0f));
    Bindings bindings{};
    bindings.inputs = {memory.view()};
    bindings.output = output.view();
    bindings.input_gradients = {{}};
    op->bind(bindings);
    op->forward();
    op->backward(1);
    const std::vector<std::int32_t> none(shape[0]);
    check_close(output, cropped(pixels, shape, {none, none, std::vector<std::uint8_t>(shape[0])}, op->output().shape));
  }
}

TEST_CASE("on a GPU: images are cropped and mirrored while they are loaded") {
  Gpu gpu(GENERATE(from_range(std::begin(test::kPrecisions), std::end(test::kPrecisions))));
  const Shape in{4, 7, 9, 3}, out{4, 3, 6, 8};
  const auto pixels = test::random_pixels(elements(in), 1);
  const Crops crops{{0, 1, -2, 3}, {0, -1, 1, 4}, {0, 1, 1, 0}};
  Values constants;  // of each channel: factors, then offsets
  const std::size_t channels = cuda::channel_block(gpu.context.type());
  for (std::size_t c = 0; c < channels; ++c) constants.push_back(c < 3 ? 1 / (255.0f * kInput.stddev[c]) : 0);
  for (std::size_t c = 0; c < channels; ++c) constants.push_back(c < 3 ? -kInput.mean[c] / kInput.stddev[c] : 0);
  Buffer memory[5];
  const float* factor = uploaded(gpu, constants, memory[0]);
  const cuda::Images images{uploaded(gpu, pixels, memory[1]), in[0], in[1], in[2], in[3]};
  const cuda::Augmentation augmentation{uploaded(gpu, crops.rows, memory[2]), uploaded(gpu, crops.columns, memory[3]),
                                        uploaded(gpu, crops.mirrored, memory[4])};
  GpuTensor output(gpu, cuda::value_spec(out, gpu.context.type()), Values(elements(out), 77.0f));
  cuda::load_images(images, augmentation, factor, factor + channels, output.spec, output.view().address, gpu.context);
  check_close(output, cropped(pixels, in, crops, out));
}

}  // namespace annulus
