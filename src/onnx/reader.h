#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "models/zoo/zoo.h"
#include "src/onnx/attributes.h"
#include "src/onnx/batch_constants.h"
#include "src/onnx/file.h"
#include "src/onnx/graph_builder.h"
#include "src/onnx/tensor.h"
#include "src/onnx/trained_tensors.h"

// How an ONNX graph's nodes become layers in a GraphBuilder: a function for each operator, in the files read_*.cpp.
namespace annulus {

using Host = std::shared_ptr<const HostTensor>;

// A stored tensor of real numbers, which may be a parameter, and may be transposed.
struct FileTensor {
  const onnx::TensorProto* tensor;
  bool transposed = false;
};

// A layer's output.
struct Computed {
  Value value;
};

// Random numbers in this shape, as exporters write dropout and stochastic depth: uniform in 0..1, and then 1 with the
// probability `kept`, else 0, times `scale`.
struct RandomMask {
  Shape shape;
  std::optional<double> kept{};
  double scale = 1;
};

// The tokens that a network reads, {batch, length}, which only embeddings read.
struct Tokens {
  Shape shape;
};

// Nothing is known, because the node that computes the value could not be read.
struct Unread {};

struct Item;
using Sequence = std::vector<Item>;

// What is known about a value in the ONNX graph.
struct Item : std::variant<Unread, Host, FileTensor, Computed, RandomMask, Tokens, Sequence> {
  using variant::variant;
};

Graph empty_graph(const Task& task);  // with the task's input, without nodes

class NetworkInput;

class Reader {
 public:
  Reader(const OnnxFile& file, const Task& task);
  ~Reader();

  // Reads all nodes. What could not be read is in problems().
  void run();
  const std::vector<std::string>& problems() const { return problems_; }
  const std::vector<std::string>& notes() const { return notes_; }
  const GraphBuilder& builder() const { return builder_; }
  Value output() const;        // the logits, or a language model's loss
  Pixels pixels() const;       // that the built network reads
  const char* sample() const;  // for messages

  // Whether the built layers depend on a stored tensor's values, not only on the shape.
  bool depends_on_values(const onnx::TensorProto& tensor) const { return hosts_.contains(&tensor); }

  const TrainedTensors& trained() const { return trained_; }
  // Whether a node that was read has the tensor as an input.
  bool reads(const onnx::TensorProto& tensor) const { return items_.contains(tensor.name()); }
  // Why a tensor is a constant, if that follows from how nodes use it; null otherwise.
  const char* untrained(const onnx::TensorProto& tensor) const;

 private:
  friend class NodeReader;

  void count_reads(const onnx::NodeProto& node);
  void read(const onnx::NodeProto& node);
  void read_branch(const onnx::NodeProto& node);
  bool fold(const onnx::NodeProto& node);
  std::optional<Host> host(const Item& item);
  const Host& converted(const onnx::TensorProto& tensor);
  Item& item(const std::string& name);
  std::string source_of(Value value) const;

  const OnnxFile& file_;
  const Task& task_;
  const TrainedTensors trained_;
  const std::size_t batch_;  // in the shapes that the file computes
  std::map<std::string, Item, std::less<>> items_;
  std::map<std::string, std::size_t, std::less<>> readers_;    // how many nodes read a value
  std::map<const onnx::TensorProto*, Host> hosts_;             // stored constants that were converted
  std::set<Host> weights_;                                     // constants that are trained in layers
  std::map<const onnx::TensorProto*, const char*> untrained_;  // and why
  std::size_t folded_ = 0;                                     // elements in the constants that were computed
  std::map<const void*, Value> values_;                        // constants and parameters that became layers
  std::vector<Host> kept_;                                     // these constants, so that their addresses stay theirs
  std::set<const onnx::TensorProto*> named_;                   // tensors that a layer is named after
  std::vector<std::string> problems_, notes_;
  GraphBuilder builder_;
  const std::unique_ptr<NetworkInput> input_;
};

// A node that is being read, and the inputs.
class NodeReader {
 public:
  NodeReader(Reader& reader, const onnx::NodeProto& node) : attributes(node), reader_(reader), node_(node) {}

  const Attributes attributes;

  const std::string& op() const { return node_.op_type(); }
  std::string written_call() const;  // PyTorch's, with the arguments; empty if the file does not name it
  std::int64_t operators() const { return reader_.file_.operators(); }
  std::size_t batch() const { return reader_.batch_; }
  const Task& task() const { return reader_.task_; }
  GraphBuilder& builder() { return reader_.builder_; }
  void note(std::string line) { reader_.notes_.push_back(std::move(line)); }

  std::size_t inputs() const { return static_cast<std::size_t>(node_.input_size()); }
  std::size_t outputs() const { return static_cast<std::size_t>(node_.output_size()); }
  bool has(std::size_t input) const;
  bool used(std::size_t output) const;  // whether a node reads it
  bool graph_output(std::size_t output) const;
  const Item& item(std::size_t input) const;
  template <class Kind>
  const Kind* as(std::size_t input) const {
    return has(input) ? std::get_if<Kind>(&item(input)) : nullptr;
  }

  Shape input_shape(std::size_t input) const;        // for batch()
  Shape other_input_shape(std::size_t input) const;  // for the second batch in batch_constants.h
  std::string text(Value value) const { return to_string(reader_.builder_.shape(value, 1)); }  // for errors
  Shape shape(Value value) const { return reader_.builder_.shape(value, reader_.batch_); }

  // Returns a constant input's values; null if it is not constant, or throws Error.
  Host constant(std::size_t input) const;
  const HostTensor& expect_constant(std::size_t input) const;
  std::optional<double> number(std::size_t input) const;  // the value, if all elements of a constant are equal
  double expect_number(std::size_t input) const;  // that value, or Error; a stored tensor with any name is a constant
  std::vector<std::int64_t> wholes(std::size_t input) const;
  std::vector<std::int64_t> wholes_or(std::size_t input, const char* attribute) const;  // empty if both are missing

  // The input as a layer's output. A parameter or constant becomes a layer.
  Value value(std::size_t input);
  Value value(const Item& item);
  // An arithmetic operation's input.
  Value operand(std::size_t input);
  // An input that PyTorch rather has as a buffer, for this reason: a constant unless the file marks it as a parameter.
  Value table(std::size_t input, const char* reason);
  // How many nodes read the other of two inputs.
  std::size_t readers_of_other(std::size_t input) const;
  bool is_layer(std::size_t input) const { return as<Computed>(input) != nullptr; }

  // Returns a stored tensor, a constant, or a value that does not depend on the batch, as a layer's parameter, which
  // may be frozen; nothing if the input is something else. The second throws Error instead: "its weights are ...".
  std::optional<Stored> stored(std::size_t input) const;
  Stored expect_stored(std::size_t input, std::string_view what) const;
  // PyTorch's exporters store parameters and buffers; operators' constants are nodes.
  bool file_marks_parameters() const { return reader_.trained_.marked(); }
  bool exported_by_pytorch() const { return reader_.file_.producer() == "pytorch"; }
  bool trained(std::size_t input) const;  // whether it is a stored tensor that is trained anywhere, not only in layers
  bool trained_in_layers(std::size_t input) const;

  // Append layers. The second names the layer after its first parameter; parameters that are values become inputs.
  // Inputs may be numbers; the output is a number if all are.
  Value add(Operation operation, std::vector<Value> inputs);
  Value add(Operation operation, std::vector<Value> inputs, std::vector<Stored> parameters);
  Value add_erf(Value input);

  // Common layers. They add nothing if it would have no effect.
  Value reshape(Value x, const Shape& to, std::optional<std::size_t> batch_axis = std::nullopt);
  Value squeeze(Value x, const std::vector<std::size_t>& axes);  // removes dimensions with a single element; ascending
  Value transpose(Value x, std::vector<std::size_t> order);
  Value linear(Value x, double alpha, double beta);  // alpha x + beta
  Value function(Activation::Function function, Value x, float alpha = 0, float beta = 0);
  Value combine(Arithmetic::Operator op, Value a, Value b);
  // Return values {batch, channels, length} as images with a single row, others unchanged; and back, if the operator's
  // input had no rows.
  Value as_images(Value x);
  Value from_images(Value images, std::size_t input);
  // alpha x + beta for each channel of the images, by their normalization.
  Value normalized(Value images, const std::vector<float>& alpha, const std::vector<float>& beta);
  Value gather(Value x, std::size_t axis, const std::vector<std::size_t>& indices);
  Value slice(Value x, std::size_t axis, std::size_t begin, std::size_t size);
  Value expand(Value x, const Shape& to);
  // Repeat a value for every image: a constant that follows the batch, or a value that does not depend on it, along a
  // dimension, which becomes images of its elements, or elements of images.
  Value repeat_for_images(const HostTensor& constant);
  Value repeat_for_images(Value x, std::size_t axis, bool images_first = true);
  // Returns what a constant repeats for every image, or for every window {batch, length} of tokens; nothing if it does
  // not. Throws Error if the constant follows the batch, but the images differ.
  std::optional<PerImage> for_each_sample(const HostTensor& constant) const;
  // Returns a constant input as arithmetic with a value needs it: with a single element in the dimension in which it is
  // repeated for the value's images. Null if the input is not constant.
  Host constant_beside(std::size_t input, Value images) const;
  // A value that is combined with images: dimension `axis` corresponds to `place`, and has `extent` elements. If
  // that is the value's extent for the file's batch, a value for any batch replaces it. Throws Error if images differ.
  Value for_images(Value x, std::size_t axis, const BatchPlace& place, std::size_t extent);
  // Returns the places of a constant input's numbers that follow the batch.
  std::vector<std::size_t> following(std::size_t input) const;
  void expect_same_for_batches(std::size_t input) const;  // throws Error if it is a constant that follows the batch
  // Like expand(), to a shape with a dimension `axis` that follows the batch.
  Value expand_by_batch(Value x, Shape to, std::size_t axis);
  // Repeats a value that does not depend on the batch for every image. `to`: for batch().
  Value expand_to_batch(Value x, const Shape& to, const BatchPlace& place);
  Value masked(Value x, const RandomMask& mask);  // x times the mask, in training
  void expect_not_batch(Value x, std::size_t axis) const;

  void set(Item item, std::size_t output = 0);
  void set_weights(HostTensor weights);  // a constant that is trained in layers
  void set(Value value, std::size_t output = 0) { set(Item(Computed{value}), output); }

 private:
  Value with_repeated_constants(Value x, std::size_t extent);  // an extent that the file's batch has
  // Devices compute no values without dimensions. A number is a layer's only element, reshaped.
  Value number_of(Value element);
  Value append(Operation operation, std::vector<Value> inputs, std::vector<Stored> parameters);
  bool lies_otherwise_elsewhere(const Stored& parameter) const;
  void resolve(Stored& parameter, const ParameterDeclaration& declared);
  Value value(const Stored& parameter, const std::string& layer, const ParameterDeclaration& declared);
  std::string layer_name(const std::vector<Stored>& parameters);
  std::string default_name() const;

  Reader& reader_;
  const onnx::NodeProto& node_;
};

// Whether an operand with this shape has a number for each channel of values {batch, channels, ...}, if it is broadcast
// to them.
bool is_per_channel(const Shape& operand, const Shape& values);

// Reads a node: sets the outputs' items. Throws Error with a text that follows the node's name.
using ReadNode = void (*)(NodeReader& node);

// Whether the node compares random numbers with a number: then the output is set, a random mask.
bool compares_random_numbers(NodeReader& node, bool less);

// Operators by name. Each file adds some.
using ReadNodes = std::map<std::string_view, ReadNode>;
void add_convolutions(ReadNodes& all);
void add_products(ReadNodes& all);
void add_elementwise(ReadNodes& all);
void add_comparisons(ReadNodes& all);
void add_attention(ReadNodes& all);
void add_scans(ReadNodes& all);
void add_resizes(ReadNodes& all);
void add_patches(ReadNodes& all);
void add_quantized(ReadNodes& all);
void add_norms(ReadNodes& all);
void add_pools(ReadNodes& all);
void add_shaping(ReadNodes& all);
void add_random(ReadNodes& all);

}  // namespace annulus
