#pragma once

#include <onnx/onnx_pb.h>

#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "models/graph/graph.h"
#include "src/onnx/tensor.h"

namespace annulus {

// A layer's parameter: a tensor in the file, a constant that the file computes, or a value that does not depend on the
// batch.
struct Stored {
  const onnx::TensorProto* tensor = nullptr;
  std::shared_ptr<const HostTensor> computed{};
  bool transposed = false;  // the tensor is the parameter's matrix, transposed
  bool frozen = false;      // a buffer or a constant
  bool named = false;       // PyTorch's state_dict has the tensor as it is stored
  std::optional<Value> value{};
};

// The error function for each element, which we have only as a part of GELU.
struct Erf {};

// Where the batch is in a shape: extent `axis` is outer x batch x inner, row-major. Reshapes put other dimensions
// there.
struct BatchPlace {
  std::size_t axis, outer;
  bool operator==(const BatchPlace&) const = default;
};

// Builds a graph from a file: some layers are parts of patterns, or nothing will read them.
class GraphBuilder {
 public:
  struct Layer {
    std::string name;
    std::variant<Operation, Erf> operation;
    std::vector<Value> inputs;
    std::vector<Stored> stored{};    // in the order of the operation's parameters
    std::size_t outer = 1;           // see BatchPlace
    std::optional<Stored> values{};  // for a constant: the tensor that is trained if it becomes a layer's parameter
    Shape of_one{}, of_two{};        // output, for a batch of one and of two
  };

  // `empty`: a graph for the network's input, without nodes.
  explicit GraphBuilder(const Graph& empty) : outside_(empty.shapes(1)), outside_of_two_(empty.shapes(2)) {}

  // Appends a layer. Values are numbered as in Graph. Throws Error if the inputs do not fit, or if the
  // output is empty or too large.
  Value add(Layer layer);

  const std::vector<Layer>& layers() const { return layers_; }
  Layer& layer(Value value) { return layers_[value - Graph::output(0)]; }
  const Layer& layer(Value value) const { return layers_[value - Graph::output(0)]; }

  // Returns the operation that computes a value, if it has this kind, else null.
  template <class Kind>
  const Kind* computed_by(Value value) const {
    if (!Graph::has_node(value)) return nullptr;
    const auto& operation = layer(value).operation;
    if constexpr (std::is_same_v<Kind, Erf>)
      return std::get_if<Erf>(&operation);
    else
      return std::holds_alternative<Operation>(operation) ? std::get_if<Kind>(&std::get<Operation>(operation))
                                                          : nullptr;
  }

  Shape shape(Value value, std::size_t batch) const;
  std::optional<BatchPlace> batch(Value value) const;  // nothing if the value does not depend on the batch

  // Whether a value depends on each layer.
  std::vector<bool> used_layers(Value value) const;

 private:
  const Shape& of_one(Value value) const;
  const Shape& of_two(Value value) const;

  Shapes outside_, outside_of_two_;
  std::vector<Layer> layers_;
};

}  // namespace annulus
