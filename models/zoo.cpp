#include "models/zoo.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "kernels/error.h"
#include "models/architectures.h"

namespace annulus {

const std::vector<ZooEntry>& zoo() {
  static const std::vector<ZooEntry> entries{
      {"mlp", "784-256-128-10 for 28x28 images: two hidden dense layers", mlp},
      {"lenet", "LeNet-5 with ReLU and max pooling (LeCun et al., 1998): 62k parameters for 28x28", lenet},
      {"cnn", "two 3x3 convolutions and two dense layers: 422k parameters for 28x28", cnn},
      {"resnet20", "ResNet-20 for small images (He et al., 2015, section 4.2), projection shortcuts", resnet20},
      {"resnet50", "ResNet-50 (He et al., 2015), v1.5: 25.6M parameters for 1000 classes", resnet50},
  };
  return entries;
}

Graph make_model(const std::string& name, const Task& task) {
  const auto entry = std::ranges::find(zoo(), name, &ZooEntry::name);
  if (entry != zoo().end()) return entry->make(task);
  std::vector<std::string> names;
  std::ranges::transform(zoo(), std::back_inserter(names), &ZooEntry::name);
  fail("there is no model \"{}\": known are {}", name, fmt::join(names, ", "));
}

}  // namespace annulus
