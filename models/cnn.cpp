#include "models/architectures.h"

namespace annulus {

Graph cnn(const Task& task) {
  Graph g(task.image);
  Value x = g.add("input", ImageInput{task.mean, task.deviation}, {Graph::kImages});
  x = g.add("conv1", Convolution{.channels = 32, .kernel = 3, .padding = 1}, {x});
  x = g.add("relu1", Relu{}, {x});
  x = g.add("pool1", MaxPool{.kernel = 2, .stride = 2}, {x});
  x = g.add("conv2", Convolution{.channels = 64, .kernel = 3, .padding = 1}, {x});
  x = g.add("relu2", Relu{}, {x});
  x = g.add("pool2", MaxPool{.kernel = 2, .stride = 2}, {x});
  x = g.add("dense1", Dense{128}, {x});
  x = g.add("relu3", Relu{}, {x});
  x = g.add("dense2", Dense{task.classes}, {x});
  g.add("loss", SoftmaxCrossEntropy{task.label_smoothing}, {x, Graph::kLabels});
  return g;
}

}  // namespace annulus
