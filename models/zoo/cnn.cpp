#include "models/zoo/architectures.h"
#include "models/zoo/layers.h"

namespace annulus {

Graph cnn(const Task& task) {
  Graph g(task.image);
  Value x = image_input(g, task);
  x = convolution_relu(g, "conv1", x, {.channels = 32, .kernel = 3, .padding = 1});
  x = g.add("pool1", MaxPool{.kernel = 2, .stride = 2}, {x});
  x = convolution_relu(g, "conv2", x, {.channels = 64, .kernel = 3, .padding = 1});
  x = g.add("pool2", MaxPool{.kernel = 2, .stride = 2}, {x});
  x = dense_relu(g, "fc1", x, {128});
  x = g.add("fc2", Dense{task.classes}, {x});
  return with_loss(g, task, x);
}

}  // namespace annulus
