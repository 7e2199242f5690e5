#include <fmt/format.h>

#include <array>
#include <cmath>

#include "models/zoo/architectures.h"
#include "models/zoo/layers.h"

// Huang, Liu, van der Maaten, Weinberger, "Densely connected convolutional networks", CVPR 2017, in torchvision's
// layout and names. Initial weights are torchvision's: He et al.'s fan-in initialization for convolutions.

namespace annulus {
namespace {

constexpr std::size_t kGrowth = 32;                           // channels that each layer adds
constexpr std::size_t kBottleneck = 4;                        // channels of a layer's 1x1 convolution: times kGrowth
constexpr std::array<std::size_t, 4> kLayers{6, 12, 24, 16};  // in each block

Value norm_relu(Graph& g, const std::string& norm, const std::string& relu, Value x) {
  return g.add(relu, Relu{}, {g.add(norm, BatchNorm{}, {x})});
}

// A convolution of `inputs` channels, without bias.
Value plain_convolution(Graph& g, const std::string& name, Value x, std::size_t inputs, Convolution convolution) {
  convolution.bias = false;
  convolution.stddev = std::sqrt(2 / static_cast<float>(inputs * convolution.kernel.area()));
  return g.add(name, convolution, {x});
}

// Computes kGrowth channels from all `channels` before, and appends them.
Value dense_layer(Graph& g, const std::string& name, Value x, std::size_t channels) {
  constexpr std::size_t kNarrow = kBottleneck * kGrowth;
  Value y = norm_relu(g, name + ".norm1", name + ".relu1", x);
  y = plain_convolution(g, name + ".conv1", y, channels, {.channels = kNarrow, .kernel = 1});
  y = norm_relu(g, name + ".norm2", name + ".relu2", y);
  y = plain_convolution(g, name + ".conv2", y, kNarrow, {.channels = kGrowth, .kernel = 3, .padding = 1});
  return g.add(name, Concat{}, {x, y});
}

// Halves the channels and the image's size.
Value transition(Graph& g, const std::string& name, Value x, std::size_t channels) {
  x = norm_relu(g, name + ".norm", name + ".relu", x);
  x = plain_convolution(g, name + ".conv", x, channels, {.channels = channels / 2, .kernel = 1});
  return g.add(name + ".pool", AveragePool{.kernel = 2, .stride = 2}, {x});
}

}  // namespace

Graph densenet121(const Task& task) {
  Graph g(task.image);
  Value x = image_input(g, task);
  std::size_t channels = 2 * kGrowth;
  const Convolution first{.channels = channels, .kernel = 7, .stride = 2, .padding = 3};
  x = plain_convolution(g, "features.conv0", x, task.image.channels, first);
  x = norm_relu(g, "features.norm0", "features.relu0", x);
  x = g.add("features.pool0", MaxPool{.kernel = 3, .stride = 2, .padding = 1}, {x});
  for (std::size_t block = 1; block <= kLayers.size(); ++block) {
    for (std::size_t layer = 1; layer <= kLayers[block - 1]; ++layer, channels += kGrowth)
      x = dense_layer(g, fmt::format("features.denseblock{}.denselayer{}", block, layer), x, channels);
    if (block == kLayers.size()) break;
    x = transition(g, fmt::format("features.transition{}", block), x, channels);
    channels /= 2;
  }
  x = norm_relu(g, "features.norm5", "features.relu5", x);
  x = g.add("avgpool", AdaptiveAveragePool{1}, {x});
  const float stddev = std::sqrt(1 / static_cast<float>(3 * channels));
  x = g.add("classifier", Dense{.units = task.classes, .stddev = stddev}, {x});
  return with_loss(g, task, x);
}

}  // namespace annulus
