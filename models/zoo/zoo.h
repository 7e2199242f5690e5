#pragma once

#include <string>
#include <vector>

#include "kernels/base/labels.h"
#include "models/graph/graph.h"

namespace annulus {

// SoftmaxCrossEntropy; BinaryCrossEntropy or, for several classes, MultiLabelCrossEntropy; MeanSquaredError.
enum class Loss { softmax, binary, mse };

// "softmax", "binary" or "mse".
std::string to_string(Loss loss);

// "auto" is the first loss for this kind of labels. Throws Error if the loss is not for them.
Loss parse_loss(const std::string& name, LabelKind labels);

// The task of a model: the shape of images, their normalization, and the number of classes; or the windows of tokens
// of which it predicts the next ones.
struct Task {
  ImageShape image;
  std::vector<float> mean, stddev;  // of each channel, pixels scaled to 0..1
  std::size_t classes;              // of regression: the number of values
  LabelKind labels = LabelKind::one_class;
  Loss loss = Loss::softmax;  // one for these labels
  float label_smoothing = 0;  // this and the next: see SoftmaxCrossEntropy
  std::vector<float> class_weights{};
  bool mixed_labels = false;         // see LabelForm::mixed
  TokenShape tokens{};               // instead of images and classes, if the labels are LabelKind::tokens
  bool zero_init_last_norm = false;  // the initial scale of each residual block's last batch norm is 0
};

// Returns a task for random images, whose normalization does not matter, or for tokens.
Task neutral_task(const ImageShape& image, std::size_t classes);
Task token_task(const TokenShape& tokens);

struct ZooEntry {
  std::string name;
  std::string description;
  ImageShape image;     // of the data set that it is commonly trained on; others are supported
  std::size_t classes;  // likewise
  Graph (*make)(const Task& task);
  TokenShape tokens{};  // of a model that reads tokens, instead of images and classes

  bool reads_tokens() const { return tokens.length > 0; }
  Task task() const;  // that of these data sets
};

// All models by name. To add one, write a file with its function, and add a line to zoo.cpp.
const std::vector<ZooEntry>& zoo();

// Throws Error, listing the names, if there is no model of this name.
const ZooEntry& zoo_entry(const std::string& name);

// Builds a model. Throws Error like zoo_entry(), and if the images are too small; the error names the layer and the
// minimum size.
Graph make_model(const std::string& name, const Task& task);

}  // namespace annulus
