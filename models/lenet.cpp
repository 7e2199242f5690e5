#include "models/architectures.h"

namespace annulus {

// LeCun, Bottou, Bengio, Haffner, "Gradient-based learning applied to document recognition", 1998, as it is trained
// today: ReLU for tanh, max pooling for trainable subsampling.
Graph lenet(const Task& task) {
  Graph g(task.image);
  Value x = g.add("input", ImageInput{task.mean, task.deviation}, {Graph::kImages});
  x = g.add("conv1", Convolution{.channels = 6, .kernel = 5, .padding = 2}, {x});
  x = g.add("relu1", Relu{}, {x});
  x = g.add("pool1", MaxPool{.kernel = 2, .stride = 2}, {x});
  x = g.add("conv2", Convolution{.channels = 16, .kernel = 5}, {x});
  x = g.add("relu2", Relu{}, {x});
  x = g.add("pool2", MaxPool{.kernel = 2, .stride = 2}, {x});
  x = g.add("dense1", Dense{120}, {x});
  x = g.add("relu3", Relu{}, {x});
  x = g.add("dense2", Dense{84}, {x});
  x = g.add("relu4", Relu{}, {x});
  x = g.add("dense3", Dense{task.classes}, {x});
  g.add("loss", SoftmaxCrossEntropy{task.label_smoothing}, {x, Graph::kLabels});
  return g;
}

}  // namespace annulus
