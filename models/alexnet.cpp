#include "models/architectures.h"
#include "models/layers.h"

namespace annulus {

// Krizhevsky, "One weird trick for parallelizing convolutional neural networks", 2014: AlexNet on one GPU, without
// local response normalization, in torchvision's sizes. Initial weights have the default std, which is 1.7 times
// torchvision's, and initial biases are 0: the paper's fixed std of 0.01 needs biases of 1.
Graph alexnet(const Task& task) {
  constexpr std::size_t kUnits = 4096;
  constexpr float kRate = 0.5f;
  const MaxPool halve{.kernel = 3, .stride = 2};
  Graph g(task.image);
  Value x = image_input(g, task);
  x = convolution_relu(g, "conv1", x, {.channels = 64, .kernel = 11, .stride = 4, .padding = 2});
  x = g.add("pool1", halve, {x});
  x = convolution_relu(g, "conv2", x, {.channels = 192, .kernel = 5, .padding = 2});
  x = g.add("pool2", halve, {x});
  x = convolution_relu(g, "conv3", x, {.channels = 384, .kernel = 3, .padding = 1});
  x = convolution_relu(g, "conv4", x, {.channels = 256, .kernel = 3, .padding = 1});
  x = convolution_relu(g, "conv5", x, {.channels = 256, .kernel = 3, .padding = 1});
  x = g.add("pool5", halve, {x});
  x = g.add("pool", AdaptiveAveragePool{6}, {x});
  x = dense_relu(g, "dense1", dropout(g, "dropout1", kRate, x), {kUnits});
  x = dense_relu(g, "dense2", dropout(g, "dropout2", kRate, x), {kUnits});
  x = g.add("dense3", Dense{task.classes}, {x});
  return with_loss(g, task, x);
}

}  // namespace annulus
