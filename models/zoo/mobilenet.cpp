#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "models/zoo/architectures.h"
#include "models/zoo/layers.h"

// Howard et al., "Searching for MobileNetV3", ICCV 2019, table 1, in torchvision's layout and names. Initial weights
// are torchvision's: He et al.'s fan-out initialization, which ignores groups, and a std of 0.01 for dense layers.

namespace annulus {
namespace {

// An inverted residual block: a 1x1 convolution that expands the channels, a convolution of each channel by itself, and
// a 1x1 convolution.
struct InvertedBlock {
  std::size_t kernel, expanded, channels;
  bool squeezes;  // whether channels are weighted by functions of their means
  bool swish;     // hard swish, not ReLU
  std::size_t stride;
};

constexpr std::array<InvertedBlock, 15> kInvertedBlocks{{{3, 16, 16, false, false, 1},
                                                         {3, 64, 24, false, false, 2},
                                                         {3, 72, 24, false, false, 1},
                                                         {5, 72, 40, true, false, 2},
                                                         {5, 120, 40, true, false, 1},
                                                         {5, 120, 40, true, false, 1},
                                                         {3, 240, 80, false, true, 2},
                                                         {3, 200, 80, false, true, 1},
                                                         {3, 184, 80, false, true, 1},
                                                         {3, 184, 80, false, true, 1},
                                                         {3, 480, 112, true, true, 1},
                                                         {3, 672, 112, true, true, 1},
                                                         {5, 672, 160, true, true, 2},
                                                         {5, 960, 160, true, true, 1},
                                                         {5, 960, 160, true, true, 1}}};
constexpr std::size_t kStem = 16, kLast = 960, kHead = 1280;

// A convolution without bias that keeps or, by its stride, divides the image's size, and batch norm.
Value scaled_convolution(Graph& g, const std::string& name, Value x, Convolution convolution) {
  convolution.padding = convolution.kernel.height / 2;
  convolution.bias = false;
  convolution.stddev = fan_out_stddev(convolution);
  x = g.add(name + ".0", convolution, {x});
  return g.add(name + ".1", BatchNorm{.epsilon = 1e-3f, .momentum = 0.01f}, {x});
}

Value hard_swish(Graph& g, const std::string& name, Value x) {
  return g.add(name, Activation{Activation::Function::hard_swish}, {x});
}

Value activated(Graph& g, const std::string& name, Value x, const Convolution& convolution, bool swish) {
  x = scaled_convolution(g, name, x, convolution);
  return swish ? hard_swish(g, name + ".2", x) : g.add(name + ".2", Relu{}, {x});
}

// Returns a quarter of the channels, rounded to the nearest multiple of 8, but at least 90 % of a quarter.
std::size_t squeezed(std::size_t channels) {
  const std::size_t quarter = channels / 4, rounded = std::max<std::size_t>(8, (quarter + 4) / 8 * 8);
  return 10 * rounded < 9 * quarter ? rounded + 8 : rounded;
}

// Hu, Shen, Sun, "Squeeze-and-excitation networks", CVPR 2018: multiplies each channel by a function of the channels'
// means.
Value squeeze_excitation(Graph& g, const std::string& name, Value x, std::size_t channels) {
  const auto pixel = [&](const std::string& layer, Value from, std::size_t outputs) {
    Convolution convolution{.channels = outputs, .kernel = 1};
    convolution.stddev = fan_out_stddev(convolution);
    return g.add(name + layer, convolution, {from});
  };
  Value scale = g.add(name + ".avgpool", AdaptiveAveragePool{1}, {x});
  scale = g.add(name + ".activation", Relu{}, {pixel(".fc1", scale, squeezed(channels))});
  const Activation gate{Activation::Function::hard_sigmoid, 1 / 6.0f, 0.5f};
  scale = g.add(name + ".scale_activation", gate, {pixel(".fc2", scale, channels)});
  return g.add(name, Arithmetic{Arithmetic::Operator::product}, {x, scale});
}

Value inverted_residual(Graph& g, const std::string& name, Value x, std::size_t inputs, const InvertedBlock& block) {
  const Value around = x;
  std::size_t layer = 0;
  const auto next_name = [&] { return fmt::format("{}.block.{}", name, layer++); };
  if (block.expanded != inputs)
    x = activated(g, next_name(), x, {.channels = block.expanded, .kernel = 1}, block.swish);
  const Convolution depthwise{
      .channels = block.expanded, .kernel = block.kernel, .stride = block.stride, .groups = block.expanded};
  x = activated(g, next_name(), x, depthwise, block.swish);
  if (block.squeezes) x = squeeze_excitation(g, next_name(), x, block.expanded);
  x = scaled_convolution(g, next_name(), x, {.channels = block.channels, .kernel = 1});
  return block.stride == 1 && block.channels == inputs ? g.add(name, Add{}, {x, around}) : x;
}

}  // namespace

Graph mobilenet_v3_large(const Task& task) {
  constexpr float kStddev = 0.01f, kRate = 0.2f;
  Graph g(task.image);
  Value x = image_input(g, task);
  x = activated(g, "features.0", x, {.channels = kStem, .kernel = 3, .stride = 2}, true);
  std::size_t channels = kStem, number = 1;
  for (const InvertedBlock& block : kInvertedBlocks) {
    x = inverted_residual(g, fmt::format("features.{}", number++), x, channels, block);
    channels = block.channels;
  }
  x = activated(g, fmt::format("features.{}", number), x, {.channels = kLast, .kernel = 1}, true);
  Sequential classifier(g, "classifier", g.add("avgpool", AdaptiveAveragePool{1}, {x}));
  classifier.add(Dense{.units = kHead, .stddev = kStddev});
  classifier.add(Activation{Activation::Function::hard_swish});
  classifier.add_dropout(kRate);
  classifier.add(Dense{.units = task.classes, .stddev = kStddev});
  return with_loss(g, task, classifier.output());
}

}  // namespace annulus
