#pragma once

#include <string>
#include <vector>

#include "models/graph.h"

namespace annulus {

// What a model is made for: images of this shape, their normalization, so many classes.
struct Task {
  ImageShape image;
  std::vector<float> mean, deviation;  // of each channel, pixels scaled to 0..1
  std::size_t classes;
  float label_smoothing = 0;  // see SoftmaxCrossEntropy
};

struct ZooEntry {
  std::string name;
  std::string description;
  Graph (*make)(const Task& task);
};

// Every published architecture that there is by name. To add one: a file with its function, and a line in zoo.cpp.
const std::vector<ZooEntry>& zoo();

// Throws Error listing the names where there is none of this name.
Graph make_model(const std::string& name, const Task& task);

}  // namespace annulus
