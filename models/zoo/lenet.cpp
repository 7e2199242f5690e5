#include "models/zoo/architectures.h"
#include "models/zoo/layers.h"

namespace annulus {

// LeCun, Bottou, Bengio, Haffner, "Gradient-based learning applied to document recognition", 1998, as it is trained
// today: ReLU instead of tanh, max pooling instead of trainable subsampling.
Graph lenet(const Task& task) {
  Graph g(task.image);
  Value x = image_input(g, task);
  x = convolution_relu(g, "conv1", x, {.channels = 6, .kernel = 5, .padding = 2});
  x = g.add("pool1", MaxPool{.kernel = 2, .stride = 2}, {x});
  x = convolution_relu(g, "conv2", x, {.channels = 16, .kernel = 5});
  x = g.add("pool2", MaxPool{.kernel = 2, .stride = 2}, {x});
  x = dense_relu(g, "fc1", x, {120});
  x = dense_relu(g, "fc2", x, {84});
  x = g.add("fc3", Dense{task.classes}, {x});
  return with_loss(g, task, x);
}

}  // namespace annulus
