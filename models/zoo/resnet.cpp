#include <fmt/format.h>

#include <array>
#include <span>

#include "models/zoo/architectures.h"
#include "models/zoo/layers.h"

// He, Zhang, Ren, Sun, "Deep residual learning for image recognition", 2015. Convolutions have He et al.'s fan-out
// initialization, as in torchvision; with Task::zero_init_last_norm each block initially computes its shortcut alone
// (Goyal et al., "Accurate, large minibatch SGD", 2017, section 5.1).

namespace annulus {
namespace {

// A convolution without bias, then batch norm.
Value convolution_norm(Graph& g, const std::string& conv, const std::string& norm, Value x, Convolution convolution,
                       float scale = 1) {
  convolution.bias = false;
  convolution.stddev = fan_out_stddev(convolution);
  x = g.add(conv, convolution, {x});
  return g.add(norm, BatchNorm{.initial_scale = scale}, {x});
}

// A block's place in the network, and the change in image shape.
struct Place {
  std::string name;
  std::size_t channels, stride;
  bool project;     // whether the shortcut is a 1x1 convolution, because the shape changes
  float end_scale;  // the last batch norm's initial scale
};

Value shortcut(Graph& g, const Place& place, Value x, std::size_t channels) {
  if (!place.project) return x;
  return convolution_norm(g, place.name + ".downsample.0", place.name + ".downsample.1", x,
                          {.channels = channels, .kernel = 1, .stride = place.stride});
}

// Two 3x3 convolutions around a shortcut.
Value basic_block(Graph& g, const Place& place, Value x) {
  const auto& [name, channels, stride, project, end_scale] = place;
  const Value around = shortcut(g, place, x, channels);
  x = convolution_norm(g, name + ".conv1", name + ".bn1", x,
                       {.channels = channels, .kernel = 3, .stride = stride, .padding = 1});
  x = g.add(name + ".relu1", Relu{}, {x});
  x = convolution_norm(g, name + ".conv2", name + ".bn2", x, {.channels = channels, .kernel = 3, .padding = 1},
                       end_scale);
  x = g.add(name + ".add", Add{}, {x, around});
  return g.add(name + ".relu2", Relu{}, {x});
}

constexpr std::size_t kWidening = 4;

// A bottleneck, with four times as many channels at both ends as in between. The stride is in the 3x3 convolution, as
// is common today ("v1.5"), not in the first 1x1 convolution.
Value bottleneck_block(Graph& g, const Place& place, Value x) {
  const auto& [name, channels, stride, project, end_scale] = place;
  const Value around = shortcut(g, place, x, kWidening * channels);
  x = convolution_norm(g, name + ".conv1", name + ".bn1", x, {.channels = channels, .kernel = 1});
  x = g.add(name + ".relu1", Relu{}, {x});
  x = convolution_norm(g, name + ".conv2", name + ".bn2", x,
                       {.channels = channels, .kernel = 3, .stride = stride, .padding = 1});
  x = g.add(name + ".relu2", Relu{}, {x});
  x = convolution_norm(g, name + ".conv3", name + ".bn3", x, {.channels = kWidening * channels, .kernel = 1},
                       end_scale);
  x = g.add(name + ".add", Add{}, {x, around});
  return g.add(name + ".relu3", Relu{}, {x});
}

using Block = Value (*)(Graph& g, const Place& place, Value x);

// Stages of blocks: each but the first halves the image and doubles the channels. `widening`: channel factor at the
// blocks' ends.
Value stages(Graph& g, const Task& task, Value x, Block block, std::size_t widening, std::size_t channels,
             std::span<const std::size_t> blocks) {
  for (std::size_t stage = 0; stage < blocks.size(); ++stage)
    for (std::size_t number = 0; number < blocks[stage]; ++number) {
      const bool first = number == 0;
      x = block(g,
                {.name = fmt::format("layer{}.{}", stage + 1, number),
                 .channels = channels << stage,
                 .stride = first && stage > 0 ? 2u : 1u,
                 .project = first && (stage > 0 || widening > 1),
                 .end_scale = task.zero_init_last_norm ? 0.0f : 1.0f},
                x);
    }
  return x;
}

// Section 4.2: three stages of basic blocks for CIFAR-sized images. Shortcuts are projections, instead of the paper's
// shortcuts without parameters ("option A").
Graph small_resnet(const Task& task, std::size_t blocks) {
  Graph g(task.image);
  Value x = image_input(g, task);
  x = convolution_norm(g, "conv1", "bn1", x, {.channels = 16, .kernel = 3, .padding = 1});
  x = g.add("relu", Relu{}, {x});
  x = stages(g, task, x, basic_block, 1, 16, std::array{blocks, blocks, blocks});
  x = g.add("avgpool", AdaptiveAveragePool{1}, {x});
  x = g.add("fc", Dense{task.classes}, {x});
  return with_loss(g, task, x);
}

// Section 4.1, table 1. The dense layer's initial weights have a std of 0.01 (Goyal et al., section 5.1).
Graph resnet(const Task& task, Block block, std::size_t widening, const std::array<std::size_t, 4>& blocks) {
  Graph g(task.image);
  Value x = image_input(g, task);
  x = convolution_norm(g, "conv1", "bn1", x, {.channels = 64, .kernel = 7, .stride = 2, .padding = 3});
  x = g.add("relu", Relu{}, {x});
  x = g.add("maxpool", MaxPool{.kernel = 3, .stride = 2, .padding = 1}, {x});
  x = stages(g, task, x, block, widening, 64, blocks);
  x = g.add("avgpool", AdaptiveAveragePool{1}, {x});
  x = g.add("fc", Dense{.units = task.classes, .stddev = 0.01f}, {x});
  return with_loss(g, task, x);
}

}  // namespace

Graph resnet20(const Task& task) {
  return small_resnet(task, 3);
}

Graph resnet56(const Task& task) {
  return small_resnet(task, 9);
}

Graph resnet18(const Task& task) {
  return resnet(task, basic_block, 1, {2, 2, 2, 2});
}

Graph resnet34(const Task& task) {
  return resnet(task, basic_block, 1, {3, 4, 6, 3});
}

Graph resnet50(const Task& task) {
  return resnet(task, bottleneck_block, kWidening, {3, 4, 6, 3});
}

Graph resnet101(const Task& task) {
  return resnet(task, bottleneck_block, kWidening, {3, 4, 23, 3});
}

Graph resnet152(const Task& task) {
  return resnet(task, bottleneck_block, kWidening, {3, 8, 36, 3});
}

}  // namespace annulus
