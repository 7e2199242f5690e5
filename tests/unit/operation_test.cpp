// Each operation of the CPU against plain loops in double precision (naive_operation.h): its output, and its gradients
// against central differences of those loops.

#include "kernels/operation.h"

#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "kernels/base/mixed_label.h"
#include "kernels/cpu/convolution/first_convolution.h"
#include "kernels/cpu/convolution/row_convolution.h"
#include "kernels/cpu/convolution/winograd.h"
#include "kernels/cpu/loops/vectors.h"
#include "kernels/cpu/plan/dnnl_pass.h"
#include "kernels/device.h"
#include "kernels/dropout_mask.h"
#include "tests/unit/operation_trial.h"

namespace annulus {
namespace {

using test::blocked;
using test::check_operation;
using test::check_output;
using test::check_trial;
using test::distance;
using test::has_our_layouts;
using test::kTolerance;
using test::largest;
using test::Operand;
using test::random_values;
using test::scratch_saved;
using test::Tensor;
using test::Trial;

std::string text(const Convolution& c) {
  return fmt::format("{} channels, kernel {}x{}, stride {}, padding {}x{}, bias {}, relu {}", c.channels,
                     c.kernel.height, c.kernel.width, c.stride.height, c.padding.top, c.padding.left, c.bias, c.relu);
}

}  // namespace

TEST_CASE("pixels are scaled and normalized channel by channel") {
  const int threads = GENERATE(1, 2);
  const auto device = test::make_device(threads);
  const ImageInput operation{{0.5f, 0.1f, 0.0f}, {0.25f, 2.0f, 1.0f}};
  const Shape shape{2, 9, 16, 3};
  const TensorSpec spec = device->plain(shape, DataType::u8);
  std::vector<std::uint8_t> pixels(elements(shape));
  for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<std::uint8_t>(i * 7);  // every one of 0..255
  const Buffer raw = device->allocate(pixels.size());
  device->upload(std::as_bytes(std::span(pixels)), raw.view());
  const auto op = device->plan(operation, {spec}, Mode::training, {});
  REQUIRE(op->output().shape == Shape{2, 3, 9, 16});
  REQUIRE(op->parameters().empty());
  const Operand output(*device, op->output(), std::vector<float>(pixels.size(), 1e6f));
  op->bind({.inputs = {raw.view()},
            .output = output.memory.view(),
            .parameters = {},
            .parameter_gradients = {},
            .input_gradients = {{}},
            .output_gradient = {}});
  op->forward();
  op->backward(1);
  const auto values = output.read();
  for (std::size_t n = 0; n < 2; ++n)
    for (std::size_t c = 0; c < 3; ++c)
      for (std::size_t i = 0; i < 9 * 16; ++i) {
        const double expected =
            (pixels[(n * 9 * 16 + i) * 3 + c] / 255.0 - static_cast<double>(operation.mean[c])) / operation.stddev[c];
        REQUIRE(values[(n * 3 + c) * 9 * 16 + i] == Approx(expected).epsilon(0).margin(1e-6));
      }
}

TEST_CASE("convolutions of every kind") {
  const int threads = GENERATE(1, 2);
  const auto device = test::make_device(threads);
  std::size_t trials = 0, ours = 0;
  for (const std::size_t kernel : {1, 3, 5, 7})
    for (const std::size_t stride : {1, 2})
      for (const std::size_t channels_in : {1, 2, 3, 4, 5, 16})
        for (const bool first : {true, false}) {
          // The other parameters are drawn at random, so that all combinations are likely.
          const std::uint64_t draw = mix(kernel, stride, channels_in, std::uint64_t{first});
          const std::size_t channels[] = {1, 5, 8, 12, 17};
          const Convolution operation{.channels = channels[draw % 5],
                                      .kernel = kernel,
                                      .stride = stride,
                                      .padding = (draw >> 8) % (kernel / 2 + 1),
                                      .bias = (draw >> 16) % 2 == 0,
                                      .relu = (draw >> 17) % 2 == 0};
          const std::size_t batch = (draw >> 18) % 2 == 0 ? 1 : 3;
          const Shape shape{batch, channels_in, 7, 9};
          const TensorSpec input = first ? device->values(shape) : blocked(*device, shape);
          CAPTURE(text(operation), to_string(shape), first, threads);
          Trial trial(*device, operation, {input}, !first);
          ++trials;
          ours += !test::on_gpu() && cpu::FirstConvolutionGradient::supports(operation, input, trial.op->output(),
                                                                             trial.op->parameters()[0]);
          check_trial(trial, !first, trial.parameters.size());
        }
  CHECK(trials == 96);
  if (has_our_layouts()) CHECK(ours == (cpu::kChannelBlock == 8 ? 32 : 0));
}

TEST_CASE("convolutions with non-square kernels and padding") {
  const auto device = test::make_device(GENERATE(1, 2));
  for (const Extent kernel : {Extent{1, 7}, Extent{7, 1}, Extent{1, 3}, Extent{3, 1}, Extent{2, 3}})
    for (const bool padded : {false, true})
      for (const std::size_t stride : {1, 2})
        for (const bool first : {true, false}) {
          const Convolution operation{.channels = stride == 1 ? 16u : 5u,
                                      .kernel = kernel,
                                      .stride = stride,
                                      .padding = padded ? Border{kernel.height / 2, kernel.width / 2} : Border{0},
                                      .bias = first,
                                      .relu = padded};
          const Shape shape{2, first ? 3u : 8u, 7, 9};
          CAPTURE(text(operation), first);
          check_operation(*device, operation, {first ? device->values(shape) : blocked(*device, shape)}, !first);
        }
}

TEST_CASE("the first convolution's weight gradient, element by element") {
  const int threads = GENERATE(1, 2);
  const auto device = test::make_device(threads);
  for (const std::size_t kernel : {1, 3, 5, 7, 11})
    for (const std::size_t stride : {1, 2, 3})
      for (const std::size_t channels_in : {1, 3}) {
        const Convolution operation{
            .channels = 11, .kernel = kernel, .stride = stride, .padding = kernel / 2, .bias = kernel != 5};
        const Shape shape{3, channels_in, 10, 12};
        Trial trial(*device, operation, {device->values(shape)}, false);
        CAPTURE(text(operation), channels_in, threads);
        trial.op->forward();
        for (int repeat = 0; repeat < 2; ++repeat) {  // nothing remains from the step before
          trial.op->backward(1);
          const Tensor in = trial.inputs[0].tensor();
          const Shape& out = trial.op->output().shape;
          std::vector<double> weights(elements(trial.op->parameters()[0].shape)), bias(operation.channels);
          for (std::size_t n = 0; n < out[0]; ++n)
            for (std::size_t c = 0; c < out[1]; ++c)
              for (std::size_t y = 0; y < out[2]; ++y)
                for (std::size_t x = 0; x < out[3]; ++x) {
                  const double g = trial.seeded[((n * out[1] + c) * out[2] + y) * out[3] + x];
                  bias[c] += g;
                  for (std::size_t from = 0; from < channels_in; ++from)
                    for (std::size_t i = 0; i < kernel; ++i)
                      for (std::size_t j = 0; j < kernel; ++j) {
                        const std::size_t row = y * stride + i - kernel / 2;  // outside, it wraps
                        const std::size_t column = x * stride + j - kernel / 2;
                        if (row >= shape[2] || column >= shape[3]) continue;
                        weights[((c * channels_in + from) * kernel + i) * kernel + j] +=
                            g * in.values[((n * channels_in + from) * shape[2] + row) * shape[3] + column];
                      }
                }
          const Operand& gradient = trial.parameter_gradients[0];
          CHECK(distance(gradient.tensor().values, weights) <= kTolerance * largest(weights));
          CHECK(gradient.clean());
          if (operation.bias)
            CHECK(distance(trial.parameter_gradients[1].tensor().values, bias) <= kTolerance * largest(bias));
        }
      }
}

TEST_CASE("3x3 convolutions with stride 1 are bit-identical on any number of threads") {
  if (test::on_gpu()) return;  // which has no threads
  constexpr std::size_t kTwoBlocks = 2 * cpu::kChannelBlock, kThreeBlocks = 3 * cpu::kChannelBlock;
  std::size_t trials = 0, ours = 0;
  for (const Extent image : {Extent{5, 6}, Extent{7, 9}, Extent{12, 3}, Extent{40, 40}})
    for (const std::size_t padding : {0, 1, 2})
      for (const std::size_t channels_in : {kTwoBlocks, kThreeBlocks}) {
        const bool large = image.height == 40;  // several blocks of tiles
        if (large && (padding != 1 || channels_in != kTwoBlocks)) continue;
        const std::uint64_t draw = mix(image.height, padding, channels_in);
        const Convolution operation{.channels = large || draw % 2 == 0 ? kTwoBlocks : kThreeBlocks,
                                    .kernel = 3,
                                    .padding = padding,
                                    .bias = (draw >> 8) % 2 == 0,
                                    .relu = (draw >> 9) % 2 == 0};
        const Shape shape{large || (draw >> 10) % 2 == 0 ? 1u : 3u, channels_in, image.height, image.width};
        CAPTURE(text(operation), to_string(shape));
        std::vector<std::vector<std::byte>> bits;
        for (const int threads : {1, 2, 3}) {
          const auto device = test::make_device(threads);
          const TensorSpec input = blocked(*device, shape);
          Trial trial(*device, operation, {input});
          ++trials;
          const bool winograd =
              cpu::Winograd::supports(operation, input, trial.op->output(), trial.op->parameters()[0]);
          ours += winograd;
          if (threads == 1) check_trial(trial, true, trial.parameters.size());
          const auto made = trial.run(trial.bindings, [] {});
          if (threads == 1) bits = made;
          if (winograd) CHECK(made == bits);  // oneDNN does not guarantee that
        }
      }
  CHECK(trials == 57);
  if (has_our_layouts()) CHECK(ours == 51);  // all but those of 10x1 outputs
}

TEST_CASE("5x5 convolutions with few channels are bit-identical on any number of threads") {
  if (test::on_gpu()) return;  // which has no threads
  std::size_t trials = 0, ours = 0;
  for (const Extent image : {Extent{5, 10}, Extent{6, 11}, Extent{9, 25}, Extent{14, 14}})
    for (const std::size_t padding : {0, 2, 3})
      for (const std::size_t channels_in : {1, 3, 6}) {
        const bool plain = channels_in < 6;  // a first convolution
        const std::uint64_t draw = mix(image.width, padding, channels_in);
        const Convolution operation{.channels = std::array{6u, 16u, 20u}[draw % 3],
                                    .kernel = 5,
                                    .padding = padding,
                                    .bias = (draw >> 8) % 2 == 0,
                                    .relu = (draw >> 9) % 2 == 0,
                                    .input_gradient = !plain};
        const Shape shape{(draw >> 10) % 2 == 0 ? 1u : 6u, channels_in, image.height, image.width};
        CAPTURE(text(operation), to_string(shape));
        std::vector<std::vector<std::byte>> bits;
        for (const int threads : {1, 2, 3}) {
          const auto device = test::make_device(threads);
          const TensorSpec input = plain ? device->values(shape) : blocked(*device, shape);
          Trial trial(*device, operation, {input}, !plain);
          ++trials;
          const bool rows =
              cpu::RowConvolution::supports(operation, input, trial.op->output(), trial.op->parameters()[0]);
          ours += rows;
          if (threads == 1) check_trial(trial, !plain, trial.parameters.size());
          const auto made = trial.run(trial.bindings, [] {});
          if (threads == 1) bits = made;
          if (rows) CHECK(made == bits);
        }
      }
  CHECK(trials == 108);
  if (has_our_layouts()) CHECK(ours == 90);  // all but those of outputs less than ten pixels wide
}

TEST_CASE("dense layers over images in any layout and over vectors") {
  const int threads = GENERATE(1, 2);
  const std::size_t batch = GENERATE(1, 3);
  const bool relu = GENERATE(false, true);
  const auto device = test::make_device(threads);
  CAPTURE(threads, batch, relu);
  for (const std::size_t units : {1, 7, 16})
    for (const std::size_t channels : {1, 3, 5, 16}) {
      CAPTURE(units, channels);
      const Shape shape{batch, channels, 3, 4};
      const Dense operation{units, relu};
      check_operation(*device, operation, {device->values(shape)}, channels != 3);
      check_operation(*device, operation, {blocked(*device, shape)});
      check_operation(*device, operation, {device->values({batch, channels})});
    }
}

TEST_CASE("layers without an input gradient do not plan it") {
  const auto device = test::make_device(GENERATE(1, 2));
  const Convolution first{.channels = 16, .kernel = 7, .stride = 2, .padding = 3};
  const std::size_t image_bytes = 2 * 3 * 20 * 20 * sizeof(float);  // a CPU would choose another layout
  const std::size_t spared = scratch_saved(*device, first, device->values({2, 3, 20, 20}));
  if (!test::on_gpu()) CHECK(spared >= image_bytes);
  scratch_saved(*device, Convolution{.channels = 8, .kernel = 3, .padding = 1}, blocked(*device, {2, 16, 9, 9}));
  scratch_saved(*device, Dense{.units = 10, .relu = true}, device->values({3, 2, 5, 5}));
}

// This happens with AVX-512: a training network's weights do not match the layout of an inference network's images.
TEST_CASE("weights in a layout that only oneDNN's reference implementation supports are reordered") {
  if (test::on_gpu()) return;
  using Tag = dnnl::memory::format_tag;
  const auto laid_out = [](const Shape& shape, Tag tag) {
    return cpu::spec(shape, {{shape.begin(), shape.end()}, dnnl::memory::data_type::f32, tag});
  };
  const auto device = test::make_device(2);
  const auto check = [&](const Operation& operation, const TensorSpec& input, const TensorSpec& weights) {
    const std::vector<TensorSpec> parameters{weights, laid_out({weights.shape[0]}, Tag::a)};
    Trial training(*device, operation, {input}, true, Mode::training, parameters);
    check_trial(training, true, 2);
    Trial inference(*device, operation, {input}, false, Mode::inference, parameters);
    inference.op->forward();
    check_output(inference);
    for (const Trial* trial : {&training, &inference}) {
      CHECK(trial->op->parameters()[0].layout->name() == weights.layout->name());
      REQUIRE(!trial->op->info().implementations.empty());
      for (const std::string& name : trial->op->info().implementations) {
        CAPTURE(name);
        CHECK(!cpu::is_reference(name));
      }
    }
  };
  check(Dense{.units = 12, .relu = true}, laid_out({3, 16, 5, 5}, Tag::nhwc), laid_out({12, 16, 5, 5}, Tag::aBcd16b));
  check(Convolution{.channels = 24, .kernel = 3, .padding = 1}, laid_out({2, 16, 6, 6}, Tag::nhwc),
        laid_out({24, 16, 3, 3}, Tag::aBcd16b));
}

TEST_CASE("max pools, disjoint and overlapping") {
  const int threads = GENERATE(1, 2);
  const bool relu = GENERATE(false, true);
  const auto device = test::make_device(threads);
  for (const MaxPool& pool : {MaxPool{2, 2}, MaxPool{3, 2, 1}, MaxPool{3, 3}, MaxPool{3, 3, 1}, MaxPool{3, 1, 1},
                              MaxPool{2, 3}, MaxPool{4, 2, 1}, MaxPool{1, 1}, MaxPool{1, 2}})
    for (const std::size_t height : {6, 7})
      for (const std::size_t channels : {1, 5, 8, 20}) {
        const MaxPool operation{pool.kernel, pool.stride, pool.padding, relu};
        const Shape shape{3, channels, height, 9};
        CAPTURE(threads, relu, pool.kernel, pool.stride, pool.padding, to_string(shape));
        check_operation(*device, operation, {device->values(shape)});
        check_operation(*device, operation, {blocked(*device, shape)});
        check_operation(*device, operation, {device->values(shape)}, false);
      }
}

TEST_CASE("the first of equal pixels in a max pool's window gets the gradient; NaN is propagated") {
  const auto device = test::make_device(1);
  const bool vectors = GENERATE(false, true);
  const Shape shape{1, vectors ? 16u : 1u, 4, 4};
  const TensorSpec spec = vectors ? blocked(*device, shape) : device->values(shape);
  const std::size_t channels = shape[1];
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto pooled = [&](const MaxPool& operation, const std::vector<float>& channel) {
    Trial trial(*device, operation, {spec});
    std::vector<float> values;
    for (std::size_t c = 0; c < channels; ++c) values.insert(values.end(), channel.begin(), channel.end());
    device->write(values, spec, trial.inputs[0].memory.view());
    const std::vector<float> ones(elements(trial.op->output().shape), 1.0f);
    device->write(ones, trial.op->output(), trial.output_gradient[0].memory.view());
    trial.op->forward();
    trial.op->backward(1);
    auto output = trial.output[0].read(), gradient = trial.input_gradients[0].read();
    const auto same_in_every_channel = [&](std::vector<float>& all) {
      const std::size_t area = all.size() / channels;
      for (std::size_t i = area; i < all.size(); ++i) REQUIRE(std::memcmp(&all[i], &all[i % area], sizeof(float)) == 0);
      all.resize(area);
    };
    same_in_every_channel(output);
    same_in_every_channel(gradient);
    return std::pair(output, gradient);
  };

  const std::vector<float> equal(16, 2.0f);
  CHECK(pooled({2, 2}, equal).second == std::vector<float>{1, 0, 1, 0, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0});
  CHECK(pooled({3, 2, 1}, equal).second == std::vector<float>{1, 1, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0});
  // A ReLU passes neither the value nor the gradient of elements that are not positive.
  CHECK(pooled({2, 2, 0, true}, std::vector<float>(16, 0.0f)).second == std::vector<float>(16, 0.0f));
  CHECK(pooled({2, 2, 0, true}, std::vector<float>(16, -1.0f)).first == std::vector<float>(4, 0.0f));

  for (const bool relu : {false, true})
    for (std::size_t position = 0; position < 4; ++position) {
      std::vector<float> values(16, 3.0f);
      values[position / 2 * 4 + position % 2] = nan;
      const auto [output, gradient] = pooled({2, 2, 0, relu}, values);
      CAPTURE(relu, position);
      CHECK(std::isnan(output[0]));
      CHECK(output[1] == 3);
      CHECK(gradient[position / 2 * 4 + position % 2] == 1);
    }
}

TEST_CASE("a max pool's window too large for its index type is refused") {
  const auto device = test::make_device(1);
  const TensorSpec spec = device->values({1, 1, 20, 20});
  CHECK_NOTHROW(device->plan(MaxPool{15, 1}, {spec}, Mode::training, {}));
  CHECK_THROWS_WITH(device->plan(MaxPool{16, 1}, {spec}, Mode::training, {}), Catch::Contains("16x16"));
}

TEST_CASE("average pools, disjoint and overlapping") {
  const auto device = test::make_device(GENERATE(1, 2));
  for (const AveragePool& pool : {AveragePool{3, 1, 1}, AveragePool{2, 2}, AveragePool{3, 2}, AveragePool{2, 3},
                                  AveragePool{5, 2, 2}, AveragePool{2, 2, 2}, AveragePool{1, 1}})
    for (const std::size_t channels : {1, 5, 16}) {
      const Shape shape{3, channels, 6, 7};
      CAPTURE(pool.kernel, pool.stride, pool.padding, channels);
      check_operation(*device, pool, {device->values(shape)});
      check_operation(*device, pool, {blocked(*device, shape)});
      check_operation(*device, pool, {device->values(shape)}, false);
    }
}

TEST_CASE("adaptive average pools, to fewer pixels and to more") {
  const auto device = test::make_device(GENERATE(1, 2));
  for (const Extent size : {Extent{1}, Extent{2, 3}, Extent{5, 3}, Extent{7}, Extent{1, 9}})
    for (const std::size_t batch : {1, 3})
      for (const std::size_t channels : {1, 5, 8, 16}) {
        const Shape shape{batch, channels, 5, 3};
        const AdaptiveAveragePool pool{size};
        CAPTURE(size.height, size.width, batch, channels);
        check_operation(*device, pool, {device->values(shape)});
        check_operation(*device, pool, {blocked(*device, shape)});
        check_operation(*device, pool, {device->values(shape)}, false);
      }
}

TEST_CASE("concatenation of images in every layout, and of vectors") {
  const auto device = test::make_device(GENERATE(1, 2));
  using Channels = std::vector<std::size_t>;
  for (const Channels& channels : {Channels{8, 16}, Channels{16, 8, 32, 8}, Channels{3, 8}, Channels{8, 3}, Channels{1},
                                   Channels{1, 2, 3, 4, 5, 6, 7}})
    for (const int layouts : {0, 1, 2})
      for (const bool wanted : {true, false}) {
        std::vector<TensorSpec> inputs, vectors;
        for (const std::size_t count : channels) {
          const Shape shape{3, count, 2, 5};
          const bool plain = layouts == 0 || (layouts == 2 && inputs.size() % 2 == 1);
          inputs.push_back(plain ? device->values(shape) : blocked(*device, shape));
          vectors.push_back(device->values({3, count}));
        }
        CAPTURE(channels, layouts, wanted);
        check_operation(*device, Concat{}, inputs, wanted);
        check_operation(*device, Concat{}, vectors, wanted);
      }
}

TEST_CASE("dropout masks depend only on key, layer and position") {
  const auto device = test::make_device(GENERATE(1, 2));
  const bool vectors = GENERATE(true, false);
  const Shape shape = vectors ? Shape{3, 60} : Shape{3, 5, 3, 4};
  const TensorSpec spec = vectors ? device->values(shape) : blocked(*device, shape);
  const std::vector<std::int32_t> keys{7, -1, 7};
  const auto run = [&](const Dropout& operation, Mode mode) {
    const auto op = device->plan(operation, {spec, device->plain({3}, DataType::i32)}, mode, {});
    const std::vector<float> ones(elements(shape), 1.0f);
    const Operand input(*device, spec, ones), gradient(*device, op->output(), ones);
    const Operand output(*device, op->output(), std::vector<float>(ones.size(), 1e6f));
    const Operand input_gradient(*device, spec, std::vector<float>(ones.size(), 1e6f));
    const Buffer key_memory = device->allocate(sizeof(std::int32_t) * 3);
    device->upload(std::as_bytes(std::span(keys)), key_memory.view());
    Bindings bindings{.inputs = {input.memory.view(), key_memory.view()},
                      .output = output.memory.view(),
                      .parameters = {},
                      .parameter_gradients = {},
                      .input_gradients = {input_gradient.memory.view(), {}},
                      .output_gradient = gradient.memory.view()};
    op->bind(bindings);
    op->forward();
    if (mode == Mode::inference) return output.read();
    op->backward(1);
    CHECK(output.clean());
    CHECK(input_gradient.read() == output.read());  // both filled with ones
    return output.read();
  };
  const std::size_t each = elements(shape) / 3;
  for (const float rate : {0.0f, 0.25f, 0.5f}) {
    const auto mask = run({rate, 1}, Mode::training);
    for (std::size_t i = 0; i < mask.size(); ++i) {
      const std::uint64_t word = mix(static_cast<std::uint32_t>(keys[i / each]), 1, i % each) >> 32;
      const bool dropped = static_cast<double>(word) < double{rate} * 0x1p32;
      REQUIRE(mask[i] == (dropped ? 0.0f : 1 / (1 - rate)));
    }
    CHECK(run({rate, 1}, Mode::inference) == std::vector<float>(elements(shape), 1.0f));
    CHECK((run({rate, 2}, Mode::training) == mask) == (rate == 0));
  }
}

TEST_CASE("dropout keeps the expected share of values") {
  constexpr std::size_t kElements = 100'000;
  for (const float rate : {0.1f, 0.5f, 0.9f}) {
    const DropoutMask mask(rate, 3);
    double sum = 0;
    for (std::size_t i = 0; i < kElements; ++i) sum += mask.at(mask.of_sample(11), i);
    const double stddev = std::sqrt(rate / (1 - rate) / kElements);
    CHECK(std::abs(sum / kElements - 1) < 4 * stddev);
  }
}

TEST_CASE("ReLU and addition, of equal and different layouts") {
  const int threads = GENERATE(1, 2);
  const auto device = test::make_device(threads);
  for (const std::size_t channels : {1, 3, 5, 16}) {
    const Shape shape{3, channels, 5, 3};
    const TensorSpec plain = device->values(shape), other = blocked(*device, shape);
    CAPTURE(threads, channels);
    for (const TensorSpec& first : {plain, other}) {
      check_operation(*device, Relu{}, {first});
      check_operation(*device, Relu{}, {first}, false);
      for (const TensorSpec& second : {plain, other}) check_operation(*device, Add{}, {first, second});
    }
    check_operation(*device, Add{}, {plain, other}, false);
  }
  // Large enough for all threads.
  check_operation(*device, Relu{}, {device->values({2, 1, 150, 150})});
}

TEST_CASE("ReLU propagates NaN") {
  const auto device = test::make_device(1);
  const TensorSpec plain = device->values({1, 3, 4, 4});
  Trial trial(*device, Relu{}, {plain});
  std::vector<float> values(elements(plain.shape), -1.0f);
  values[5] = std::numeric_limits<float>::quiet_NaN();
  device->write(values, plain, trial.inputs[0].memory.view());
  trial.op->forward();
  const auto output = trial.output[0].read();
  CHECK(std::isnan(output[5]));
  CHECK(output[4] == 0);
}

TEST_CASE("batch norm trains with the batch's statistics, and averages them by weight") {
  const int threads = GENERATE(1, 2);
  const bool synchronized = GENERATE(false, true);  // over a single rank
  const auto device = test::make_device(threads);
  for (const std::size_t batch : {1, 3})
    for (const std::size_t channels : {1, 5, 8, 12})
      for (const bool plain : {false, true})
        for (const bool wanted : {true, false}) {
          const Shape shape{batch, channels, 5, 3};
          CAPTURE(threads, synchronized, batch, channels, plain, wanted);
          const TensorSpec spec = plain ? device->values(shape) : blocked(*device, shape);
          Trial trial(*device, BatchNorm{1e-3f, false, false, synchronized}, {spec}, wanted);
          check_trial(trial, wanted, 2);

          // backward(weight) again: the statistics are forward's, weighted by batch times weight.
          const double weight = 0.125;
          trial.op->bind(trial.bindings);
          trial.op->forward();
          trial.op->backward(static_cast<float>(weight));
          const Tensor in = trial.inputs[0].tensor();
          const std::size_t area = 15;
          const auto count = static_cast<double>(batch * area);
          const auto mean = trial.parameter_gradients[2].read(), variance = trial.parameter_gradients[3].read();
          for (std::size_t c = 0; c < channels; ++c) {
            double sum = 0, squares = 0;
            for (std::size_t i = 0; i < in.values.size(); ++i)
              if (i / area % channels == c) sum += in.values[i];
            for (std::size_t i = 0; i < in.values.size(); ++i)
              if (i / area % channels == c) squares += std::pow(in.values[i] - sum / count, 2);
            const double share = weight * static_cast<double>(batch);
            CHECK(mean[c] == Approx(share * sum / count).epsilon(1e-5).margin(1e-6));
            CHECK(variance[c] == Approx(share * squares / (count - 1)).epsilon(1e-5));
          }
        }
}

TEST_CASE("batch norm fused with an addition and a ReLU") {
  const int threads = GENERATE(1, 2);
  const bool synchronized = GENERATE(false, true);
  const auto device = test::make_device(threads);
  for (const bool add : {false, true})
    for (const bool relu : {false, true})
      for (const std::size_t channels : {1, 5, 8, 17})
        for (const bool wanted : {true, false}) {
          const Shape shape{3, channels, 5, 3};
          const TensorSpec plain = device->values(shape), other = blocked(*device, shape);
          CAPTURE(threads, synchronized, add, relu, channels, wanted);
          for (const TensorSpec& first : {plain, other})
            for (const TensorSpec& second : {plain, other}) {
              std::vector<TensorSpec> inputs{first};
              if (add) inputs.push_back(second);
              Trial trial(*device, BatchNorm{1e-3f, add, relu, synchronized}, inputs, wanted);
              check_trial(trial, wanted, 2);
            }
        }
}

TEST_CASE("batch norm of many channels is bit-identical on any number of threads") {
  const Shape shape{3, 44, 37, 41};
  std::vector<std::vector<std::byte>> first;
  for (const int threads : {1, 2, 3, 5}) {
    const auto device = test::make_device(threads);
    const TensorSpec spec = blocked(*device, shape);
    Trial trial(*device, BatchNorm{1e-3f, true, true}, {spec, spec});
    if (threads == 3) check_trial(trial, true, 2);
    const auto made = trial.run(trial.bindings, [] {});
    if (first.empty()) first = made;
    CHECK(made == first);
  }
}

TEST_CASE("batch norm's statistics of large images lose no digits") {
  const auto device = test::make_device(1);
  const std::size_t area = 224 * 224, count = 2 * area;
  Trial trial(*device, BatchNorm{}, {blocked(*device, {2, 1, 224, 224})});
  std::vector<float> values = random_values(count, 7);
  for (float& value : values) value += 2;
  for (const std::size_t border : {0, 223}) values[border] = values[area + border] = -3;
  device->write(values, trial.inputs[0].spec, trial.inputs[0].memory.view());
  trial.op->forward();
  trial.op->backward(0.5f);
  double sum = 0, squares = 0;
  for (const float value : values) sum += value;
  const double mean = sum / static_cast<double>(count);
  for (const float value : values) squares += std::pow(value - mean, 2);
  CHECK(trial.parameter_gradients[2].read()[0] == Approx(mean).epsilon(1e-7));
  CHECK(trial.parameter_gradients[3].read()[0] == Approx(squares / static_cast<double>(count - 1)).epsilon(1e-6));
}

TEST_CASE("batch norm uses the running statistics in inference") {
  const auto device = test::make_device(GENERATE(1, 2));
  const BatchNorm operation{1e-2f};
  for (const std::size_t channels : {1, 5, 12}) {
    const Shape shape{3, channels, 5, 3};
    Trial trial(*device, operation, {blocked(*device, shape)}, false, Mode::inference);
    std::vector<float> variance = random_values(channels, 99);
    for (float& value : variance) value = 1.5f + value;
    device->write(variance, trial.op->parameters()[3], trial.parameters[3].memory.view());
    trial.op->forward();
    const auto p = Trial::tensors(trial.parameters);
    const auto in = trial.inputs[0].tensor().values, out = trial.output[0].tensor().values;
    for (std::size_t i = 0; i < in.size(); ++i) {
      const std::size_t c = i / 15 % channels;
      const double expected =
          p[0].values[c] * (in[i] - p[2].values[c]) / std::sqrt(p[3].values[c] + operation.epsilon) + p[1].values[c];
      REQUIRE(out[i] == Approx(expected).margin(1e-5));
    }
  }
}

namespace {

// Returns the number of logits before the label's in descending order.
std::ptrdiff_t place_of(std::span<const float> logits, std::size_t label) {
  std::vector<std::size_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
  return std::ranges::find(order, label) - order.begin();
}

struct LossTrial {
  // `labels`: one for each sample, or the three numbers of a MixedLabel.
  LossTrial(Device& device, std::size_t batch, std::size_t classes, const std::vector<float>& logits,
            const std::vector<std::int32_t>& labels, float smoothing = 0, const std::vector<float>& class_weights = {})
      : LossTrial(device, SoftmaxCrossEntropy{smoothing, class_weights}, batch, classes, logits, labels) {}
  LossTrial(Device& device, const Operation& loss, std::size_t batch, std::size_t classes,
            const std::vector<float>& logits, const std::vector<std::int32_t>& labels)
      : op(device.plan(loss,
                       {device.values({batch, classes}),
                        device.plain(labels.size() == batch ? Shape{batch} : Shape{batch, 3}, DataType::i32)},
                       Mode::training, {})),
        in(device, device.values({batch, classes}), logits),
        gradient(device, device.values({batch, classes}), std::vector<float>(logits.size(), 1e6f)),
        sums(device, op->output(), {1e6f, 1e6f, 1e6f}),
        metrics(device, op->parameters().at(0), {1e6f, 1e6f}),
        label_memory(device.allocate(labels.size() * sizeof(std::int32_t))) {
    device.upload(std::as_bytes(std::span(labels)), label_memory.view());
    op->bind({.inputs = {in.memory.view(), label_memory.view()},
              .output = sums.memory.view(),
              .parameters = {metrics.memory.view()},
              .parameter_gradients = {metrics.memory.view()},
              .input_gradients = {gradient.memory.view(), {}},
              .output_gradient = {}});
    op->forward();
  }

  std::unique_ptr<Op> op;
  Operand in, gradient, sums, metrics;
  Buffer label_memory;
};

}  // namespace

TEST_CASE("softmax cross-entropy: losses, hits, gradients and metrics") {
  const auto device = test::make_device(GENERATE(1, 2));
  const auto [batch, classes] =
      GENERATE(std::pair<std::size_t, std::size_t>{1, 2}, std::pair<std::size_t, std::size_t>{3, 10},
               std::pair<std::size_t, std::size_t>{50, 100});
  auto logits = random_values(batch * classes, 5);
  for (float& logit : logits) logit *= 5;
  const auto labels = test::random_labels(batch, classes, 6);
  const float smoothing = GENERATE(0.0f, 0.1f);
  const double share = double{smoothing} / static_cast<double>(classes);  // of each class in the target
  LossTrial trial(*device, batch, classes, logits, labels, smoothing);
  const float weight = 0.25f;
  trial.op->backward(weight);
  const auto gradient = trial.gradient.read();
  double loss = 0;
  int correct = 0, among_five = 0;
  for (std::size_t n = 0; n < batch; ++n) {
    const float* row = logits.data() + n * classes;
    const auto label = static_cast<std::size_t>(labels[n]);
    double total = 0;
    for (std::size_t c = 0; c < classes; ++c) total += std::exp(static_cast<double>(row[c]));
    const auto wanted = [&](std::size_t c) { return share + (c == label ? 1 - double{smoothing} : 0); };
    for (std::size_t c = 0; c < classes; ++c) loss += wanted(c) * (std::log(total) - static_cast<double>(row[c]));
    correct += std::max_element(row, row + classes) == row + label;
    among_five += place_of({row, classes}, label) < 5;
    for (std::size_t c = 0; c < classes; ++c)
      REQUIRE(gradient[n * classes + c] ==
              Approx(weight * (std::exp(static_cast<double>(row[c])) / total - wanted(c))).margin(1e-6));
  }
  const auto sums = trial.sums.read(), metrics = trial.metrics.read();
  CHECK(sums[0] == Approx(loss).epsilon(1e-6));
  CHECK(sums[1] == static_cast<float>(correct));
  CHECK(sums[2] == static_cast<float>(among_five));
  CHECK(metrics[0] == weight * sums[0]);
  CHECK(metrics[1] == weight * sums[1]);
}

TEST_CASE("the loss of mixed labels is the weighted mean of the labels' losses") {
  const auto device = test::make_device(1);
  constexpr std::size_t kBatch = 4, kClasses = 7;
  constexpr std::int32_t kWhole = MixedLabel::kWhole;
  const auto logits = random_values(kBatch * kClasses, 5);
  const std::vector<std::int32_t> first{0, 3, 6, 2}, second{5, 3, 1, 4};
  const std::vector<std::int32_t> shares{kWhole / 2, kWhole / 4 * 3, kWhole, kWhole / 8 * 5};
  std::vector<std::int32_t> mixed;
  for (std::size_t i = 0; i < kBatch; ++i) mixed.insert(mixed.end(), {first[i], second[i], shares[i]});
  const float smoothing = GENERATE(0.0f, 0.1f);
  LossTrial trial(*device, kBatch, kClasses, logits, mixed, smoothing);
  trial.op->backward(0.25f);
  const auto gradient = trial.gradient.read();
  float loss = 0;
  for (std::size_t i = 0; i < kBatch; ++i) {
    const std::vector<float> row(logits.begin() + static_cast<std::ptrdiff_t>(i * kClasses),
                                 logits.begin() + static_cast<std::ptrdiff_t>((i + 1) * kClasses));
    const float share = static_cast<float>(shares[i]) / kWhole;
    LossTrial one(*device, 1, kClasses, row, {first[i]}, smoothing),
        other(*device, 1, kClasses, row, {second[i]}, smoothing);
    one.op->backward(0.25f);
    other.op->backward(0.25f);
    loss += share * one.sums.read()[0] + (1 - share) * other.sums.read()[0];
    const auto ones = one.gradient.read(), others = other.gradient.read();
    for (std::size_t c = 0; c < kClasses; ++c)
      CHECK(gradient[i * kClasses + c] == Approx(share * ones[c] + (1 - share) * others[c]).margin(1e-7));
  }
  CHECK(trial.sums.read()[0] == Approx(loss).epsilon(1e-6));
  CHECK(trial.sums.read()[1] == LossTrial(*device, kBatch, kClasses, logits, first).sums.read()[1]);
}

TEST_CASE("class weights multiply the losses and gradients of their labels") {
  const auto device = test::make_device(1);
  constexpr std::size_t kBatch = 3, kClasses = 4;
  const std::vector<float> class_weights{2, 0.5f, 1, 3};
  const auto logits = random_values(kBatch * kClasses, 5);
  const std::vector<std::int32_t> labels{3, 1, 0};
  const float smoothing = GENERATE(0.0f, 0.1f);
  LossTrial trial(*device, kBatch, kClasses, logits, labels, smoothing, class_weights);
  trial.op->backward(0.25f);
  const auto gradient = trial.gradient.read();
  float loss = 0;
  for (std::size_t i = 0; i < kBatch; ++i) {
    const auto begin = logits.begin() + static_cast<std::ptrdiff_t>(i * kClasses);
    const float weight = class_weights[static_cast<std::size_t>(labels[i])];
    LossTrial one(*device, 1, kClasses, {begin, begin + kClasses}, {labels[i]}, smoothing);
    one.op->backward(0.25f);
    loss += weight * one.sums.read()[0];
    const auto ones = one.gradient.read();
    for (std::size_t c = 0; c < kClasses; ++c)
      CHECK(gradient[i * kClasses + c] == Approx(weight * ones[c]).margin(1e-7));
  }
  CHECK(trial.sums.read()[0] == Approx(loss).epsilon(1e-6));
  // A mixed label: each of its labels has its weight.
  constexpr std::int32_t kWhole = MixedLabel::kWhole;
  const std::vector<float> row(logits.begin(), logits.begin() + kClasses);
  const auto loss_of = [&](const std::vector<std::int32_t>& label) {
    return LossTrial(*device, 1, kClasses, row, label, 0, class_weights).sums.read()[0];
  };
  CHECK(loss_of({0, 1, kWhole / 4 * 3}) == Approx(0.75f * loss_of({0}) + 0.25f * loss_of({1})));
  CHECK_THROWS_WITH(output_shape(SoftmaxCrossEntropy{0, {1, 2}}, {{2, 3}, {2}}), Catch::Contains("3 classes with 2"));
  CHECK_THROWS_WITH(output_shape(SoftmaxCrossEntropy{0, {1, 0}}, {{2, 2}, {2}}), Catch::Contains("above 0"));
}

TEST_CASE("softmax cross-entropy neither overflows nor hides NaN") {
  const auto device = test::make_device(1);
  {
    LossTrial trial(*device, 2, 3, {1e4f, -1e4f, 0, 1e4f, -1e4f, 0}, {0, 1});
    trial.op->backward(1);
    CHECK(trial.sums.read() == std::vector<float>{2e4f, 1, 2});
    CHECK(trial.gradient.read() == std::vector<float>{0, 0, 0, 1, -1, 0});
  }
  for (std::size_t position = 0; position < 3; ++position) {
    std::vector<float> logits{1, 2, 3};
    logits[position] = std::numeric_limits<float>::quiet_NaN();
    LossTrial trial(*device, 1, 3, logits, {2});
    CAPTURE(position);
    CHECK(std::isnan(trial.sums.read()[0]));
  }
}

TEST_CASE("binary cross-entropy: losses, hits and gradients") {
  const auto device = test::make_device(GENERATE(1, 2));
  const std::vector<float> logits{0.5f, -1.25f, 3, 0, -2, 4.5f, 0.25f, -0.75f};
  // The sums of PyTorch's binary_cross_entropy_with_logits, the mean over the classes, and the gradients of a quarter
  // of them.
  const auto expect = [&](const BinaryCrossEntropy& loss, const std::vector<std::int32_t>& labels, double sum,
                          const std::vector<double>& gradients) {
    LossTrial trial(*device, loss, 2, 4, logits, labels);
    trial.op->backward(0.25f);
    const auto sums = trial.sums.read(), gradient = trial.gradient.read(), metrics = trial.metrics.read();
    CHECK(sums[0] == Approx(sum).epsilon(1e-6));
    CHECK((sums[1] == 1 && sums[2] == 2));
    CHECK((metrics[0] == 0.25f * sums[0] && metrics[1] == 0.25f));
    for (std::size_t i = 0; i < logits.size(); ++i) CHECK(gradient[i] == Approx(gradients[i]).margin(1e-7));
  };
  constexpr std::int32_t kWhole = MixedLabel::kWhole;
  expect({}, {2, 0}, 2.4546316948861193,
         {0.0389037, 0.0139188, -0.0029641, 0.03125, -0.0550498, 0.0618133, 0.035136, 0.0200513});
  expect({0.1f, {0.5f, 1, 3, 1}}, {2, 0}, 2.608716220980039,
         {0.1120236, 0.0370688, 0.0051701, 0.0890625, -0.0251812, 0.0301254, 0.0167868, 0.0092444});
  expect({}, {2, 1, kWhole / 4 * 3, 0, 3, kWhole / 4 * 3}, 2.6421316948861193,
         {0.0389037, -0.0017062, 0.0126609, 0.03125, -0.0394248, 0.0618133, 0.035136, 0.0044263});
  // Neither overflows nor hides NaN.
  LossTrial large(*device, BinaryCrossEntropy{}, 1, 3, {1e4f, -1e4f, 0}, {0});
  large.op->backward(3);
  CHECK(large.sums.read()[0] == Approx(std::log(2.0) / 3));
  CHECK(large.gradient.read() == std::vector<float>{0, 0, 0.5f});
  const float nan = std::numeric_limits<float>::quiet_NaN();
  CHECK(std::isnan(LossTrial(*device, BinaryCrossEntropy{}, 1, 3, {1, nan, 2}, {0}).sums.read()[0]));
  CHECK_THROWS_WITH(output_shape(BinaryCrossEntropy{}, {{2, 5}, {3}}), Catch::Contains("binary cross-entropy takes"));
}

namespace {

struct TargetLossTrial {
  TargetLossTrial(Device& device, const Operation& loss, std::size_t batch, const std::vector<float>& values,
                  const std::vector<float>& targets)
      : shape({batch, values.size() / batch}),
        op(device.plan(loss, {device.values(shape), device.plain(shape, DataType::f32)}, Mode::training, {})),
        in(device, device.values(shape), values),
        wanted(device, device.plain(shape, DataType::f32), targets),
        gradient(device, device.values(shape), std::vector<float>(values.size(), 1e6f)),
        sums(device, op->output(), {1e6f, 1e6f}),
        metrics(device, op->parameters().at(0), {1e6f, 1e6f}) {
    op->bind({.inputs = {in.memory.view(), wanted.memory.view()},
              .output = sums.memory.view(),
              .parameters = {metrics.memory.view()},
              .parameter_gradients = {metrics.memory.view()},
              .input_gradients = {gradient.memory.view(), {}},
              .output_gradient = {}});
    op->forward();
  }

  Shape shape;
  std::unique_ptr<Op> op;
  Operand in, wanted, gradient, sums, metrics;
};

// Compares with the sums of PyTorch's losses, each the mean over a sample's values, and the gradients of a quarter of
// them.
void expect_losses(const Operation& loss, const std::vector<float>& targets, double sum, double measure,
                   const std::vector<double>& gradients) {
  const auto device = test::make_device(GENERATE(1, 2));
  TargetLossTrial trial(*device, loss, 2, {0.5f, -1.25f, 3, 0, -2, 4.5f, 0.25f, -0.75f}, targets);
  trial.op->backward(0.25f);
  const auto sums = trial.sums.read(), gradient = trial.gradient.read(), metrics = trial.metrics.read();
  CHECK(sums[0] == Approx(sum).epsilon(1e-6));
  CHECK(sums[1] == Approx(measure).epsilon(1e-6));
  CHECK((metrics[0] == 0.25f * sums[0] && metrics[1] == 0.25f * sums[1]));
  for (std::size_t i = 0; i < gradients.size(); ++i) CHECK(gradient[i] == Approx(gradients[i]).margin(1e-7));
}

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

}  // namespace

TEST_CASE("multi-label cross-entropy: losses, exact matches and gradients") {
  expect_losses(MultiLabelCrossEntropy{}, {1, 0, 1, 0, 0, 1, 1, 0}, 0.6421316997148097, 2,
                {-0.0235963, 0.0139188, -0.0029641, 0.03125, 0.0074502, -0.0006867, -0.027364, 0.0200513});
  const auto device = test::make_device(1);
  // A class with a logit of 0 is not predicted; a single wrong class makes a sample's wrong.
  CHECK(TargetLossTrial(*device, MultiLabelCrossEntropy{}, 2, {0, 1, 0, -1}, {1, 1, 0, 0}).sums.read()[1] == 1);
  TargetLossTrial large(*device, MultiLabelCrossEntropy{}, 1, {1e4f, -1e4f, 0}, {1, 0, 1});
  large.op->backward(3);
  CHECK(large.sums.read()[0] == Approx(std::log(2.0) / 3));
  CHECK(large.gradient.read() == std::vector<float>{0, 0, -0.5f});
  CHECK(std::isnan(TargetLossTrial(*device, MultiLabelCrossEntropy{}, 1, {1, kNan}, {1, 1}).sums.read()[0]));
  CHECK_THROWS_WITH(output_shape(MultiLabelCrossEntropy{}, {{2, 3}, {2}}),
                    Catch::Contains("multi-label cross-entropy takes") && Catch::Contains("2x3"));
}

TEST_CASE("mean squared error: losses, absolute errors and gradients") {
  expect_losses(MeanSquaredError{}, {1, -0.5f, 2.5f, 0, -2, 4, 1.25f, -1}, 0.59375, 0.875,
                {-0.0625, -0.09375, 0.0625, 0, 0, 0.0625, -0.125, 0.03125});
  const auto device = test::make_device(1);
  CHECK(std::isnan(TargetLossTrial(*device, MeanSquaredError{}, 1, {1, kNan}, {1, 1}).sums.read()[0]));
  CHECK_THROWS_WITH(output_shape(MeanSquaredError{}, {{2, 3}, {2, 2}}),
                    Catch::Contains("mean squared error takes") && Catch::Contains("2x3"));
}

TEST_CASE("top-5 hits by logit, with ties decided for the first") {
  const auto device = test::make_device(1);
  const auto hits = [&](const std::vector<float>& logits, std::int32_t label) {
    const auto sums = LossTrial(*device, 1, logits.size(), logits, {label}).sums.read();
    return std::pair(sums[1], sums[2]);
  };
  using Hits = std::pair<float, float>;
  const std::vector<float> falling{8, 7, 6, 5, 4, 3, 2}, equal(40, 3.0f), some{1, 2, 5, 5, 5, 5, 5, 5, 1};
  CHECK(hits(falling, 0) == Hits{1, 1});
  CHECK(hits(falling, 4) == Hits{0, 1});
  CHECK(hits(falling, 5) == Hits{0, 0});
  CHECK(hits(equal, 0) == Hits{1, 1});
  CHECK(hits(equal, 4) == Hits{0, 1});
  CHECK(hits(equal, 5) == Hits{0, 0});
  CHECK(hits(some, 2) == Hits{1, 1});
  CHECK(hits(some, 6) == Hits{0, 1});
  CHECK(hits(some, 7) == Hits{0, 0});
  CHECK(hits({1, 2, 3}, 0) == Hits{0, 1});
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  CHECK(hits({nan, nan, nan, nan, nan, 1, 0}, 5) == Hits{0, 0});
  CHECK(hits({0, 0, 0, 0, 0, nan}, 5) == Hits{0, 0});
  CHECK(hits({-infinity, 0, 0, 0, 0, -infinity}, 0) == Hits{0, 1});
  CHECK(hits({-infinity, 0, 0, 0, 0, -infinity}, 5) == Hits{0, 0});
}

TEST_CASE("shapes that do not fit an operation are refused") {
  CHECK(output_shape(MaxPool{3, 2, 1}, {{2, 5, 7, 8}}) == Shape{2, 5, 4, 4});
  CHECK(output_shape(MaxPool{2, 2, 1}, {{2, 5, 6, 8}}) == Shape{2, 5, 4, 5});
  // Windows that contain only padding have no maximum.
  for (const MaxPool& pool : {MaxPool{1, 1, 1}, MaxPool{2, 2, 2}, MaxPool{3, 1, 5}, MaxPool{2, 2, {0, 0, 3, 0}}})
    CHECK_THROWS_WITH(output_shape(pool, {{2, 5, 7, 8}}), Catch::Contains("without a pixel"));
  CHECK(output_shape(MaxPool{3, 2, {0, 0, 1, 1}}, {{2, 5, 6, 8}}) == Shape{2, 5, 3, 4});
  CHECK(output_shape(Convolution{.channels = 9, .kernel = 5, .stride = 2}, {{2, 5, 7, 8}}) == Shape{2, 9, 2, 2});
  CHECK_THROWS_WITH(output_shape(Convolution{.channels = 9, .kernel = 5}, {{2, 5, 7, 4}}), Catch::Contains("5x5"));
  CHECK(output_shape(Convolution{.channels = 9, .kernel = {1, 7}, .padding = {0, 3}}, {{2, 5, 4, 3}}) ==
        Shape{2, 9, 4, 3});
  CHECK_THROWS_WITH(output_shape(Convolution{.channels = 9, .kernel = {7, 1}}, {{2, 5, 6, 9}}),
                    Catch::Contains("7x1") && Catch::Contains("6x9"));
  CHECK_THROWS_WITH(output_shape(Convolution{.channels = 9, .kernel = 5}, {{2, 5}}), Catch::Contains("2x5"));
  CHECK_THROWS_WITH(output_shape(Add{}, {{2, 5}, {2, 6}}), Catch::Contains("same shape"));
  CHECK_THROWS_WITH(output_shape(SoftmaxCrossEntropy{}, {{2, 5}, {3}}), Catch::Contains("2x5"));
  CHECK_THROWS_WITH(output_shape(ImageInput{{0.5f}, {0.5f}}, {{2, 5, 5, 3}}), Catch::Contains("3 channels"));
  CHECK(output_shape(AdaptiveAveragePool{{7, 1}}, {{2, 5, 3, 3}}) == Shape{2, 5, 7, 1});
  CHECK(output_shape(AveragePool{3, 1, 1}, {{2, 5, 6, 7}}) == Shape{2, 5, 6, 7});
  CHECK(output_shape(Concat{}, {{2, 5, 3, 4}, {2, 1, 3, 4}, {2, 7, 3, 4}}) == Shape{2, 13, 3, 4});
  CHECK_THROWS_WITH(output_shape(Concat{}, {{2, 5, 3, 4}, {2, 5, 3, 3}}), Catch::Contains("2x5x3x4"));
  CHECK_THROWS_WITH(output_shape(Concat{}, {{2, 5, 3, 4}, {2, 5}}), Catch::Contains("2x5x3x4"));
  CHECK_THROWS_WITH(output_shape(Concat{}, {{2}}), Catch::Contains("dimension 1"));
  CHECK(output_shape(Concat{.axis = 2}, {{2, 5, 3}, {2, 5, 4}}) == Shape{2, 5, 7});
  CHECK_THROWS_WITH(output_shape(Dropout{1}, {{2, 5}, {2}}), Catch::Contains("at least 0 and below 1"));
  CHECK_THROWS_WITH(output_shape(Dropout{0.5f}, {{2, 5}, {3}}), Catch::Contains("2x5"));
  CHECK(flops(Convolution{.channels = 4, .kernel = 3, .padding = 1}, {{2, 5, 6, 7}}) == 2u * 2 * 4 * 6 * 7 * 5 * 9);
  CHECK(flops(Dense{10}, {{2, 5, 6, 7}}) == 2u * 2 * 5 * 6 * 7 * 10);
}

}  // namespace annulus
