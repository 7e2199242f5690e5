#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/labels.h"
#include "models/graph/graph.h"

namespace annulus {

// SoftmaxCrossEntropy; BinaryCrossEntropy or, for several classes, MultiLabelCrossEntropy; MeanSquaredError;
// LanguageModelHead for masked tokens.
enum class Loss { softmax, binary, mse, masked };

// "softmax", "binary", "mse" or "masked".
std::string to_string(Loss loss);

// "auto" is the first loss for this kind of labels. Throws Error if the loss is not for them.
Loss parse_loss(const std::string& name, LabelKind labels);

// A model's task: image shape, normalization and number of classes; or the token windows whose next tokens it predicts.
struct Task {
  ImageShape image;
  std::vector<float> mean, stddev;  // per channel, pixels scaled to 0..1
  std::size_t classes;              // in regression: the number of values
  LabelKind labels = LabelKind::one_class;
  Loss loss = Loss::softmax;  // must fit the labels
  float label_smoothing = 0;  // this and the next: see SoftmaxCrossEntropy
  std::vector<float> class_weights{};
  bool mixed_labels = false;         // see LabelForm::mixed
  TokenShape tokens{};               // replaces images and, if the labels are LabelKind::tokens, classes
  bool zero_init_last_norm = false;  // each residual block's last batch norm has an initial scale of 0

  bool reads_tokens() const { return tokens.length > 0; }
};

// Returns a task for random images, whose normalization does not matter, or for tokens that are predicted.
Task neutral_task(const ImageShape& image, std::size_t classes);
Task token_task(const TokenShape& tokens);

// A GPT's size.
struct GptSize {
  std::size_t layers, width, heads;
  std::size_t context = 0;  // least number of positions; a longer window has more
};

struct ZooEntry {
  std::string name;
  std::string description;
  ImageShape image;     // default data set's; others are supported
  std::size_t classes;  // the default data set's
  std::function<Graph(const Task& task)> make;
  TokenShape tokens{};               // replaces images and classes if the model reads tokens
  std::optional<GptSize> size = {};  // GPTs only

  bool reads_tokens() const { return tokens.length > 0; }
  Task task() const;  // for the default data set
};

// All models by name. To add a model, write a file with a function, and add a line to zoo.cpp.
const std::vector<ZooEntry>& zoo();

// Returns a model. A GPT's name may have another size, as the command line has it: "gpt2 --layers 4 --width 128"
// (also --heads and --context); the entry's name then has the sizes that differ from the zoo's, in this order. Throws
// Error if no model has this name, listing the names, or if a size is invalid.
ZooEntry zoo_entry(const std::string& name);

// Builds a model. Throws Error like zoo_entry(), and if the images are too small; the error names the layer and the
// minimum size.
Graph make_model(const std::string& name, const Task& task);

}  // namespace annulus
