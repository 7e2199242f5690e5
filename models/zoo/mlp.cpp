#include "models/zoo/architectures.h"
#include "models/zoo/layers.h"

namespace annulus {

Graph mlp(const Task& task) {
  Graph g(task.image);
  Value x = image_input(g, task);
  x = dense_relu(g, "fc1", x, {256});
  x = dense_relu(g, "fc2", x, {128});
  x = g.add("fc3", Dense{task.classes}, {x});
  return with_loss(g, task, x);
}

}  // namespace annulus
