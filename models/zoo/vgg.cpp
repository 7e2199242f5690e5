#include <array>

#include "models/zoo/architectures.h"
#include "models/zoo/layers.h"

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
  Graph g(task.image);
  Sequential features(g, "features", image_input(g, task));
  for (const auto& [convolutions, channels] : kStages) {
    Convolution convolution{.channels = channels, .kernel = 3, .padding = 1};
    convolution.stddev = fan_out_stddev(convolution);
    for (std::size_t i = 0; i < convolutions; ++i) {
      features.add(convolution);
      features.add(Relu{});
    }
    features.add(MaxPool{.kernel = 2, .stride = 2});
  }
  Sequential classifier(g, "classifier", g.add("avgpool", AdaptiveAveragePool{7}, {features.output()}));
  for (int layer = 0; layer < 2; ++layer) {
    classifier.add(Dense{.units = 4096, .stddev = kStddev});
    classifier.add(Relu{});
    classifier.add_dropout(kRate);
  }
  classifier.add(Dense{.units = task.classes, .stddev = kStddev});
  return with_loss(g, task, classifier.output());
}

}  // namespace annulus
