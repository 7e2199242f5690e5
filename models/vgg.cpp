#include <fmt/format.h>

#include <array>

#include "models/architectures.h"
#include "models/layers.h"

namespace annulus {

// Simonyan and Zisserman, "Very deep convolutional networks for large-scale image recognition", ICLR 2015,
// configuration D, as published: without batch norm. That is also the VGG-16 of Horovod's and TensorFlow's scaling
// figures, whose dense layers have 124 of the 138 million parameters. Initial weights are as in torchvision: He et
// al.'s fan-out initialization for convolutions, a std of 0.01 for dense layers.
Graph vgg16(const Task& task) {
  struct Stage {
    std::size_t convolutions, channels;
  };
  constexpr std::array<Stage, 5> kStages{{{2, 64}, {2, 128}, {3, 256}, {3, 512}, {3, 512}}};
  constexpr float kRate = 0.5f, kStddev = 0.01f;
  const Dense wide{.units = 4096, .stddev = kStddev};
  Graph g(task.image);
  Value x = image_input(g, task);
  for (std::size_t stage = 0; stage < kStages.size(); ++stage) {
    Convolution convolution{.channels = kStages[stage].channels, .kernel = 3, .padding = 1};
    convolution.stddev = fan_out_stddev(convolution);
    for (std::size_t i = 0; i < kStages[stage].convolutions; ++i)
      x = convolution_relu(g, fmt::format("conv{}_{}", stage + 1, i + 1), x, convolution);
    x = g.add(fmt::format("pool{}", stage + 1), MaxPool{.kernel = 2, .stride = 2}, {x});
  }
  x = g.add("pool", AdaptiveAveragePool{7}, {x});
  x = dropout(g, "dropout1", kRate, dense_relu(g, "dense1", x, wide));
  x = dropout(g, "dropout2", kRate, dense_relu(g, "dense2", x, wide));
  x = g.add("dense3", Dense{.units = task.classes, .stddev = kStddev}, {x});
  return with_loss(g, task, x);
}

}  // namespace annulus
