#include "models/zoo/architectures.h"
#include "models/zoo/layers.h"

namespace annulus {

// Krizhevsky, "One weird trick for parallelizing convolutional neural networks", 2014: AlexNet on one GPU, without
// local response normalization, in torchvision's sizes. Initial weights have the default std, which is 1.7 times
// torchvision's, and initial biases are 0: the paper's fixed std of 0.01 needs biases of 1.
Graph alexnet(const Task& task) {
  constexpr std::size_t kUnits = 4096;
  constexpr float kRate = 0.5f;
  const MaxPool halve{.kernel = 3, .stride = 2};
  Graph g(task.image);
  Sequential features(g, "features", image_input(g, task));
  features.add(Convolution{.channels = 64, .kernel = 11, .stride = 4, .padding = 2});
  features.add(Relu{});
  features.add(halve);
  features.add(Convolution{.channels = 192, .kernel = 5, .padding = 2});
  features.add(Relu{});
  features.add(halve);
  for (const std::size_t channels : {384, 256, 256}) {
    features.add(Convolution{.channels = channels, .kernel = 3, .padding = 1});
    features.add(Relu{});
  }
  features.add(halve);
  Sequential classifier(g, "classifier", g.add("avgpool", AdaptiveAveragePool{6}, {features.output()}));
  for (int layer = 0; layer < 2; ++layer) {
    classifier.add_dropout(kRate);
    classifier.add(Dense{kUnits});
    classifier.add(Relu{});
  }
  classifier.add(Dense{task.classes});
  return with_loss(g, task, classifier.output());
}

}  // namespace annulus
