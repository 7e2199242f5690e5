#include "models/architectures.h"

namespace annulus {

Graph mlp(const Task& task) {
  Graph g(task.image);
  Value x = g.add("input", ImageInput{task.mean, task.deviation}, {Graph::kImages});
  x = g.add("dense1", Dense{256}, {x});
  x = g.add("relu1", Relu{}, {x});
  x = g.add("dense2", Dense{128}, {x});
  x = g.add("relu2", Relu{}, {x});
  x = g.add("dense3", Dense{task.classes}, {x});
  g.add("loss", SoftmaxCrossEntropy{task.label_smoothing}, {x, Graph::kLabels});
  return g;
}

}  // namespace annulus
