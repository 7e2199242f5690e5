#pragma once

#include <string>
#include <vector>

#include "kernels/base/labels.h"
#include "kernels/operation.h"

namespace annulus {

// A value in a network: the output of a node, or one of the three inputs from outside.
using Value = std::size_t;

struct Node {
  std::string name;  // "layer1.0.conv1"; see parameter_name() for its parameters
  Operation operation;
  std::vector<Value> inputs;
  std::vector<std::string> frozen{};  // its parameters that training does not change: "weight"
};

// The name of a layer's parameter in the network: "conv1.weight". That of a nameless parameter is the layer's, and
// there is no dot after an underscore: "attention.in_proj_weight" belongs to the layer "attention.in_proj_".
std::string parameter_name(const std::string& layer, const std::string& parameter);

// The images that a network is built for.
struct ImageShape {
  std::size_t height, width, channels;
};

// A network as data: a directed acyclic graph of operations in topological order, ending in the loss. Independent of
// device and batch size.
class Graph {
 public:
  static constexpr Value kImages = 0;      // {batch, height, width, channels}, uint8
  static constexpr Value kLabels = 1;      // see LabelForm
  static constexpr Value kSampleKeys = 2;  // {batch}, int32: a random key of each sample in this epoch, for Dropout

  explicit Graph(const ImageShape& image) : image_(image) {}

  // Appends a node and returns its output. Throws Error, naming the node, if the inputs do not fit the operation.
  Value add(Node node);
  Value add(std::string name, Operation operation, std::vector<Value> inputs) {
    return add(Node{std::move(name), std::move(operation), std::move(inputs)});
  }

  // Sets the form of the labels, which is one_class otherwise. `width`: of targets. REQUIRES: no node reads them yet.
  void set_labels(LabelForm form, std::size_t width = 0);
  LabelForm labels() const { return labels_; }

  Graph without_nodes() const;  // with the same values from outside

  const ImageShape& image() const { return image_; }
  const std::vector<Node>& nodes() const { return nodes_; }
  static Value output(std::size_t node) { return node + kFirstNode; }

  // The number of values, and the node that computes a value; values from outside have no node.
  std::size_t values() const { return nodes_.size() + kFirstNode; }
  static bool has_node(Value value) { return value >= kFirstNode; }
  const Node& node(Value value) const { return nodes_[value - kFirstNode]; }

  // Extents may be multiples of the batch, in any dimension.
  Shape shape(Value value, std::size_t batch) const;
  Shapes shapes(std::size_t batch) const;  // of every value
  Shapes input_shapes(const Node& node, std::size_t batch) const;
  std::vector<ParameterDeclaration> parameters(const Node& node) const;  // frozen ones have Role::frozen
  // Returns for every value whether training needs its gradient: it depends on parameters that are not frozen.
  std::vector<bool> required_gradients() const;
  std::string description() const;  // every node, for comparing graphs

 private:
  static constexpr Value kFirstNode = 3;

  ImageShape image_;
  LabelForm labels_ = LabelForm::one_class;
  std::vector<Node> nodes_;
  Shapes of_one_{{1, image_.height, image_.width, image_.channels}, {1}, {1}};  // of every value, for a batch of one
  Shapes of_two_{{2, image_.height, image_.width, image_.channels}, {2}, {2}};
};

}  // namespace annulus
