#include "kernels/cuda/runtime/image_layout.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "kernels/neighbour_fusion.h"
#include "tests/gpu/ops/training_run.h"
#include "tests/unit/random_values.h"

namespace annulus {
namespace {

using cuda::ImageBlocks;
using test::Gpu;
using test::GpuTensor;
using test::TrainingRun;
using Values = std::vector<float>;

// A network's beginning, and the images.
struct Stem {
  Convolution convolution;
  Shape images;  // {batch, height, width, channels}
};

Stem stem(const Shape& images, const Extent& kernel, const Extent& stride, const Border& padding, bool ends = false) {
  return {{.channels = 5, .kernel = kernel, .stride = stride, .padding = padding, .bias = ends, .relu = ends}, images};
}

// Odd sizes and paddings, blocks that are not squares, patches, a single channel, and windows that leave out pixels.
const std::vector<Stem> kStems{stem({2, 12, 12, 3}, 7, 2, 3),
                               stem({2, 13, 9, 3}, 7, 2, 3, true),
                               stem({1, 11, 8, 1}, 5, 2, {1, 2, 0, 3}),
                               stem({2, 9, 10, 3}, 3, 2, 1),
                               stem({1, 15, 14, 3}, 3, 2, 0),
                               stem({1, 19, 23, 3}, 11, 4, 2, true),
                               stem({2, 8, 12, 3}, {4, 6}, {4, 3}, {1, 0}),
                               stem({2, 8, 8, 3}, 4, 4, 0)};

// A parameter in the value type, in the same order.
GpuTensor copy_of(Gpu& gpu, const TensorSpec& spec, const Values& values) {
  return {gpu, {spec.shape, gpu.context.type(), spec.layout}, values};
}

// What the image input and the convolution compute together.
struct Result {
  bool in_blocks;
  Values output, weight_gradient;
  bool clean;  // whether all padding is zero
};

Result run(Gpu& gpu, const Stem& stem, bool fuses) {
  const auto& [convolution, shape] = stem;
  const DataType type = gpu.context.type();
  const ImageInput input{Values(shape[3], 0.25f), Values(shape[3], 0.5f)};
  Convolution layer = convolution;
  layer.input_gradient = false;
  const TensorSpec pixels{shape, DataType::u8, std::make_shared<cuda::Plain>(shape, DataType::u8)};
  const auto images = cuda::plan(input, {pixels}, Mode::training, gpu.context);
  const auto op = cuda::plan_any(layer, {images->output()}, Mode::training, gpu.context);
  if (fuses) dynamic_cast<NeighbourFusion&>(*images).fuse_neighbours({.next = op.get()});
  const auto random = [&](const Shape& of, std::uint64_t seed) {
    return test::rounded(test::random_values(elements(of), seed), type);
  };
  const auto rubbish = [&](const TensorSpec& spec) { return Values(elements(spec.shape), 77.0f); };

  const auto bytes = test::random_pixels(elements(shape), 1);
  Buffer memory;
  test::upload(gpu.context, bytes.data(), bytes.size(), memory);
  GpuTensor values(gpu, images->output(), Values(images->output().layout->bytes() / size_of(type), 77.0f));
  Bindings of_images{};
  of_images.inputs = {memory.view()};
  of_images.output = values.view();
  images->bind(of_images);

  GpuTensor output(gpu, op->output(), rubbish(op->output()));
  Values gradient = random(op->output().shape, 2);
  for (float& value : gradient) value *= gpu.scale();
  GpuTensor output_gradient(gpu, op->output(), gradient);
  Bindings bindings{};
  bindings.inputs = {values.view()};
  bindings.output = output.view();
  bindings.output_gradient = output_gradient.view();
  std::vector<GpuTensor> parameters, copies, gradients;
  for (const TensorSpec& spec : op->parameters()) {
    const Values weights = random(spec.shape, 3);
    bindings.parameters.push_back(parameters.emplace_back(gpu, spec, weights).view());
    bindings.copies.push_back(copies.emplace_back(copy_of(gpu, spec, weights)).view());
    bindings.parameter_gradients.push_back(gradients.emplace_back(gpu, spec, rubbish(spec)).view());
  }
  bindings.input_gradients = {{}};
  op->bind(bindings);
  for (int step = 0; step < 2; ++step) {  // the second step overwrites the results of the first
    images->forward();
    op->forward();
    output_gradient.write(gradient);
    op->backward(1);
  }
  return {dynamic_cast<const ImageBlocks*>(images->output().layout.get()) != nullptr, output.read(),
          gradients[0].read(), output.clean() && gradients[0].clean()};
}

void check_close(const Values& found, const Values& expected, double tolerance) {
  REQUIRE(found.size() == expected.size());
  const double largest = std::abs(*std::ranges::max_element(expected, {}, [](float v) { return std::abs(v); }));
  for (std::size_t i = 0; i < found.size(); ++i)
    REQUIRE(found[i] == Approx(expected[i]).margin(tolerance * largest).epsilon(0));
}

// Begins like a ResNet. A max pool with 1x1 windows between the images and the convolution changes nothing.
Graph network(bool apart) {
  Graph g(ImageShape{13, 18, 3});
  Value x = g.add("input", ImageInput{{0.5f, 0.4f, 0.3f}, {0.2f, 0.3f, 0.4f}}, {Graph::kImages});
  if (apart) x = g.add("same", MaxPool{.kernel = 1, .stride = 1}, {x});
  x = g.add("conv1", Convolution{.channels = 6, .kernel = 7, .stride = 2, .padding = 3, .bias = false}, {x});
  x = g.add("bn1", BatchNorm{.relu = true}, {x});
  x = g.add("fc", Dense{4}, {x});
  g.add("loss", SoftmaxCrossEntropy{}, {x, Graph::kLabels});
  return g;
}

bool stores_blocks(TrainingRun& run, Mode mode) {
  const TensorSpec& images = run.model.network(mode, TrainingRun::kBatch).spec(Graph::output(0));
  return dynamic_cast<const ImageBlocks*>(images.layout.get()) != nullptr;
}

}  // namespace

TEST_CASE("on a GPU: a network stores images in blocks of pixels for a convolution with a stride") {
  const Precision precision = GENERATE(from_range(std::begin(test::kPrecisions), std::end(test::kPrecisions)));
  TrainingRun ours(network(false), {.precision = precision}), expected(network(true), {.precision = precision});
  const double tolerance = test::tolerance(precision);
  test::check_close_training(ours, expected, tolerance, 4 * tolerance);
  CHECK(ours.step(Mode::inference) == Approx(expected.step(Mode::inference)).epsilon(tolerance));
  for (const Mode mode : {Mode::training, Mode::inference}) {
    CHECK(stores_blocks(ours, mode));
    CHECK_FALSE(stores_blocks(expected, mode));
  }
}

TEST_CASE("on a GPU: a convolution over blocks of pixels computes the same") {
  Gpu gpu(GENERATE(from_range(std::begin(test::kPrecisions), std::end(test::kPrecisions))));
  const double tolerance = 2 * test::tolerance(gpu.context.precision);
  std::size_t in_blocks = 0;
  for (const Stem& stem : kStems) {
    const auto& [convolution, images] = stem;
    INFO(fmt::format("{}x{}x{}, {}x{} windows", images[1], images[2], images[3], convolution.kernel.height,
                     convolution.kernel.width));
    const Result apart = run(gpu, stem, false), together = run(gpu, stem, true);
    REQUIRE_FALSE(apart.in_blocks);
    in_blocks += together.in_blocks ? 1 : 0;
    check_close(together.output, apart.output, tolerance);
    check_close(together.weight_gradient, apart.weight_gradient, tolerance);
    CHECK(together.clean);
  }
  CHECK(in_blocks == (gpu.context.precision == Precision::fp32 ? 3 : 7));
}

TEST_CASE("on a GPU: convolutions without a stride read pixels") {
  Gpu gpu(Precision::bf16);
  CHECK_FALSE(run(gpu, stem({1, 8, 8, 3}, 3, 1, 1), true).in_blocks);
  CHECK_FALSE(run(gpu, stem({1, 8, 8, 3}, 1, 2, 0), true).in_blocks);  // a block would have three unread pixels
}

}  // namespace annulus
