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
  float label_smoothing = 0;         // see SoftmaxCrossEntropy
  bool zero_init_last_norm = false;  // the last batch norm of each residual block begins with a scale of 0
};

// One for random images, whose normalization does not matter.
Task neutral_task(const ImageShape& image, std::size_t classes);

struct ZooEntry {
  std::string name;
  std::string description;
  ImageShape image;  // that it is usually trained with, and into so many classes; it takes others as well
  std::size_t classes;
  Graph (*make)(const Task& task);
};

// Every published architecture that there is by name. To add one: a file with its function, and a line in zoo.cpp.
const std::vector<ZooEntry>& zoo();

// Throws Error listing the names where there is none of this name.
const ZooEntry& zoo_entry(const std::string& name);

// As zoo_entry(); also throws Error where the images are too small, naming the layer and the least size.
Graph make_model(const std::string& name, const Task& task);

}  // namespace annulus
