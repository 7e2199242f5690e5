#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/labels.h"
#include "kernels/operation.h"

namespace annulus {

// A value in a network: a node's output, or one of the three inputs from outside.
using Value = std::size_t;

struct Node {
  std::string name;  // "layer1.0.conv1"; see parameter_name() for the parameters' names
  Operation operation;
  std::vector<Value> inputs;
  std::vector<std::string> frozen{};  // parameters that training does not change: "weight"
  // Parameters shared with an earlier node, and their names in the network: {"weight", "wte.weight"}. They are stored,
  // trained and exported once.
  std::map<std::string, std::string> shared{};
  // Own parameters whose name in the network is not what parameter_name() returns: {"weight", "mid.k"}.
  std::map<std::string, std::string> names{};
  // Further names for own parameters, if PyTorch's state_dict has several: {"weight", {"decoder.weight"}}.
  std::map<std::string, std::vector<std::string>> aliases{};
  // Frozen parameters that are constants of the network. PyTorch's state_dict has no such tensors.
  std::vector<std::string> constants{};
  bool recomputed = false;  // in training, before backward: the output is not kept from forward (see recompute.h)
};

// Returns the network-wide name of a layer's parameter: "conv1.weight". A nameless parameter has the layer's name, and
// there is no dot after an underscore: "attention.in_proj_weight" belongs to the layer "attention.in_proj_".
std::string parameter_name(const std::string& layer, const std::string& parameter);
// Returns the network-wide name of a node's parameter, which may be the owner's or another name.
std::string parameter_name(const Node& node, const std::string& parameter);

// The images that a network is built for.
struct ImageShape {
  std::size_t height, width, channels;
};

// The token windows that a network is built for, see kernels/operations/tokens.h.
struct TokenShape {
  std::size_t length, vocabulary;
  Prediction prediction = Prediction::next;

  WindowForm form() const { return {length, prediction}; }
};

// A network as data: a directed acyclic graph of operations in topological order, ending in the loss. Does not depend
// on the device or the batch size.
class Graph {
 public:
  static constexpr Value kImages = 0;      // {batch, height, width, channels}, uint8
  static constexpr Value kWindow = 0;      // instead, if it reads tokens: windows, int32
  static constexpr Value kLabels = 1;      // see LabelForm
  static constexpr Value kSampleKeys = 2;  // {batch}, int32: a random key for each sample in this epoch, for dropout

  explicit Graph(const ImageShape& image);
  explicit Graph(const TokenShape& tokens);

  // Appends a node and returns its output. Throws Error, naming the node, if the inputs do not fit the operation, or if
  // it cannot share a parameter: no earlier node has that parameter, or the shape or role differs.
  Value add(Node node);
  Value add(std::string name, Operation operation, std::vector<Value> inputs) {
    return add(Node{std::move(name), std::move(operation), std::move(inputs)});
  }

  // Sets the labels' form; the default is one_class. `width`: of targets. REQUIRES: no node reads labels yet.
  void set_labels(LabelForm form, std::size_t width = 0);
  LabelForm labels() const { return labels_; }

  Graph without_nodes() const;  // with the same values from outside

  bool reads_tokens() const { return tokens_.has_value(); }
  bool predicts_tokens() const { return reads_tokens() && tokens_->prediction != Prediction::label; }
  const TokenShape& tokens() const { return tokens_.value(); }  // REQUIRES: reads_tokens()
  const ImageShape& image() const { return image_; }            // REQUIRES: it does not
  const std::vector<Node>& nodes() const { return nodes_; }
  static Value output(std::size_t node) { return node + kFirstNode; }

  // The number of values, and the node that computes a value; values from outside have no node.
  std::size_t values() const { return nodes_.size() + kFirstNode; }
  static bool has_node(Value value) { return value >= kFirstNode; }
  const Node& node(Value value) const { return nodes_[value - kFirstNode]; }
  static bool reads_sample_keys(const Node& node);

  // Extents may be multiples of the batch size, in any dimension.
  Shape shape(Value value, std::size_t batch) const;
  Shapes shapes(std::size_t batch) const;  // for every value
  Shapes input_shapes(const Node& node, std::size_t batch) const;
  // A node's parameters; frozen ones have Role::frozen. The first function omits parameters that belong to an earlier
  // node; the second includes them, with that node's role and initial values.
  std::vector<ParameterDeclaration> parameters(const Node& node) const;
  std::vector<ParameterDeclaration> all_parameters(const Node& node) const;
  // Returns for every value whether training needs the gradient: the value depends on parameters that are not frozen.
  std::vector<bool> required_gradients() const;
  std::string description() const;                    // every node, for comparing graphs
  std::string samples_text(std::size_t batch) const;  // "32 images of 28x28x1"

 private:
  static constexpr Value kFirstNode = 3;

  Graph(const ImageShape& image, const std::optional<TokenShape>& tokens, const Shape& input);
  void expect_shareable(const Node& node, const std::vector<ParameterDeclaration>& declared) const;
  void add_parameters(const Node& node, const std::vector<ParameterDeclaration>& declared);

  ImageShape image_;
  std::optional<TokenShape> tokens_;
  LabelForm labels_ = LabelForm::one_class;
  std::vector<Node> nodes_;
  Shapes of_one_, of_two_;  // every value's shape, for batch sizes 1 and 2
  // Parameters by name in the network, as their first nodes declare them.
  std::map<std::string, ParameterDeclaration> parameters_;
};

}  // namespace annulus
