#include <fmt/format.h>

#include <array>

#include "models/architectures.h"

namespace annulus {
namespace {

// A convolution without bias and its batch norm.
Value convolution_norm(Graph& g, const std::string& conv, const std::string& norm, Value x, Convolution convolution) {
  convolution.bias = false;
  x = g.add(conv, convolution, {x});
  return g.add(norm, BatchNorm{}, {x});
}

// Two 3x3 convolutions around a shortcut, which is a 1x1 convolution where the shape changes.
Value basic_block(Graph& g, const std::string& name, Value x, std::size_t channels, std::size_t stride, bool project) {
  Value shortcut = x;
  if (project)
    shortcut = convolution_norm(g, name + ".shortcut.conv", name + ".shortcut.norm", x,
                                {.channels = channels, .kernel = 1, .stride = stride});
  x = convolution_norm(g, name + ".conv1", name + ".norm1", x,
                       {.channels = channels, .kernel = 3, .stride = stride, .padding = 1});
  x = g.add(name + ".relu1", Relu{}, {x});
  x = convolution_norm(g, name + ".conv2", name + ".norm2", x, {.channels = channels, .kernel = 3, .padding = 1});
  x = g.add(name + ".add", Add{}, {x, shortcut});
  return g.add(name + ".relu2", Relu{}, {x});
}

// Four times the channels at its ends as in between. The stride is that of the 3x3 convolution, as everybody has it
// today ("v1.5"), and not of the first 1x1.
Value bottleneck_block(Graph& g, const std::string& name, Value x, std::size_t channels, std::size_t stride,
                       bool project) {
  const std::size_t wide = 4 * channels;
  Value shortcut = x;
  if (project)
    shortcut = convolution_norm(g, name + ".shortcut.conv", name + ".shortcut.norm", x,
                                {.channels = wide, .kernel = 1, .stride = stride});
  x = convolution_norm(g, name + ".conv1", name + ".norm1", x, {.channels = channels, .kernel = 1});
  x = g.add(name + ".relu1", Relu{}, {x});
  x = convolution_norm(g, name + ".conv2", name + ".norm2", x,
                       {.channels = channels, .kernel = 3, .stride = stride, .padding = 1});
  x = g.add(name + ".relu2", Relu{}, {x});
  x = convolution_norm(g, name + ".conv3", name + ".norm3", x, {.channels = wide, .kernel = 1});
  x = g.add(name + ".add", Add{}, {x, shortcut});
  return g.add(name + ".relu3", Relu{}, {x});
}

}  // namespace

// He, Zhang, Ren, Sun, "Deep residual learning for image recognition", 2015, section 4.2, with n = 3.
Graph resnet20(const Task& task) {
  Graph g(task.image);
  Value x = g.add("input", ImageInput{task.mean, task.deviation}, {Graph::kImages});
  x = convolution_norm(g, "stem.conv", "stem.norm", x, {.channels = 16, .kernel = 3, .padding = 1});
  x = g.add("stem.relu", Relu{}, {x});
  for (std::size_t stage = 1; stage <= 3; ++stage)
    for (std::size_t block = 1; block <= 3; ++block) {
      const bool first = block == 1 && stage > 1;  // halves the image, doubles the channels
      x = basic_block(g, fmt::format("stage{}.block{}", stage, block), x, std::size_t{8} << stage, first ? 2 : 1,
                      first);
    }
  x = g.add("pool", GlobalAveragePool{}, {x});
  x = g.add("dense", Dense{task.classes}, {x});
  g.add("loss", SoftmaxCrossEntropy{task.label_smoothing}, {x, Graph::kLabels});
  return g;
}

// Section 4.1: 3, 4, 6 and 3 bottleneck blocks.
Graph resnet50(const Task& task) {
  constexpr std::array<std::size_t, 4> kBlocks = {3, 4, 6, 3};
  Graph g(task.image);
  Value x = g.add("input", ImageInput{task.mean, task.deviation}, {Graph::kImages});
  x = convolution_norm(g, "stem.conv", "stem.norm", x, {.channels = 64, .kernel = 7, .stride = 2, .padding = 3});
  x = g.add("stem.relu", Relu{}, {x});
  x = g.add("stem.pool", MaxPool{.kernel = 3, .stride = 2, .padding = 1}, {x});
  for (std::size_t stage = 0; stage < kBlocks.size(); ++stage)
    for (std::size_t block = 0; block < kBlocks[stage]; ++block)
      x = bottleneck_block(g, fmt::format("stage{}.block{}", stage + 1, block + 1), x, std::size_t{64} << stage,
                           block == 0 && stage > 0 ? 2 : 1, block == 0);
  x = g.add("pool", GlobalAveragePool{}, {x});
  x = g.add("dense", Dense{task.classes}, {x});
  g.add("loss", SoftmaxCrossEntropy{task.label_smoothing}, {x, Graph::kLabels});
  return g;
}

}  // namespace annulus
