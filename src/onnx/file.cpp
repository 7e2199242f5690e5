#include "src/onnx/file.h"

#include <google/protobuf/io/coded_stream.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <set>

#include "kernels/base/error.h"
#include "src/io/file_io.h"
#include "src/io/printable.h"
#include "src/onnx/attributes.h"
#include "src/onnx/buffer_values.h"
#include "src/onnx/external_data.h"
#include "src/onnx/functions.h"
#include "src/onnx/image_layout.h"
#include "src/onnx/marks.h"
#include "src/onnx/other_files.h"
#include "src/onnx/properties.h"
#include "src/onnx/tensor.h"

namespace annulus {
namespace {

constexpr std::size_t kMostBytes = std::size_t{1} << 31;  // protobuf's limit for messages
// Operator versions. Later versions may define operators of the same name otherwise.
constexpr std::int64_t kFirstOperators = 11, kLastOperators = 23;

const std::array kFixedInputs{FixedInput{"attention_mask", 1, "hides padding"},
                              FixedInput{"token_type_ids", 0, "separates pairs of texts"}};

// Returns the tensors that are known as buffers by their values. They keep the values, which decide again when
// the file is read from a checkpoint.
std::set<std::string> known_by_values(const onnx::GraphProto& graph) {
  std::set<std::string> names;
  if (std::ranges::any_of(marks(graph), [](const auto& mark) { return mark.second.kind == "PARAMETER"; })) return names;
  for (const auto& [tensor, reason] : buffers_by_values(graph)) names.insert(tensor->name());
  return names;
}

// Names the values that nodes may read, and finds errors in their order.
class Order {
 public:
  void define(const std::string& value, const std::string& by) {
    if (!value.empty() && !defined_.insert(value).second) fail("{} computes {}, which exists already", by, value);
  }

  void expect(const onnx::NodeProto& node, const std::set<std::string>& computed_later) const {
    for (const std::string& input : node.input()) {
      if (input.empty() || defined_.contains(input)) continue;
      if (computed_later.contains(input))
        fail("node {} reads {}, which is computed after it: the nodes are not in order or have a cycle", node.name(),
             input);
      fail("node {} reads {}, which nothing computes", node.name(), input);
    }
  }

 private:
  std::set<std::string> defined_;
};

}  // namespace

OnnxFile OnnxFile::read(const std::filesystem::path& file) {
  std::vector<std::uint8_t> bytes;
  read_file(file, kMostBytes, bytes);
  OnnxFile read;
  read.name_ = file.string();
  const std::string other = other_content({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  if (!other.empty()) fail("{}: {}", read.name_, other);
  const google::protobuf::int64 most = std::numeric_limits<int>::max();
  if (static_cast<google::protobuf::int64>(bytes.size()) > most ||
      !read.model_.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())))
    fail("{}: it is not an ONNX file, or it is damaged", read.name_);
  bytes = {};
  try {
    load_external_data(read.model_, file);
    read.check();
  } catch (const Error& error) {
    fail("{}: {}", read.name_, printable(error.what()));
  }
  return read;
}

OnnxFile OnnxFile::parse(std::string_view bytes, const std::string& name) {
  OnnxFile read;
  read.name_ = name;
  if (bytes.size() >= kMostBytes || !read.model_.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())))
    fail("{}: it is not an ONNX file, or it is damaged", name);
  try {
    read.check();
  } catch (const Error& error) {
    fail("{}: {}", name, printable(error.what()));
  }
  return read;
}

void OnnxFile::check() {
  for (const onnx::OperatorSetIdProto& set : model_.opset_import())
    if (standard_domain(set.domain())) operators_ = set.version();
  if (operators_ < kFirstOperators)
    fail("its operators are of version {}, but at least {} is needed: export it with opset_version=17", operators_,
         kFirstOperators);
  if (operators_ > kLastOperators)
    fail("its operators are of version {}, but at most {} is supported: export it with opset_version=17", operators_,
         kLastOperators);
  inline_functions(model_, operators_);
  const onnx::GraphProto& graph = model_.graph();
  if (graph.sparse_initializer_size() > 0) fail("sparse tensors are not supported");
  check_tensors();
  separation_ = separate_tensors(*model_.mutable_graph());
  Order order;
  for (const onnx::TensorProto& tensor : graph.initializer()) {
    order.define(tensor.name(), "a stored tensor");
    initializers_[tensor.name()] = &tensor;
  }
  for (const onnx::ValueInfoProto& input : graph.input())
    if (!initializers_.contains(input.name())) order.define(input.name(), "an input");
  find_input();
  channels_last_ = reads_channels_last(graph, input_->name());
  std::set<std::string> computed;
  for (const onnx::NodeProto& node : graph.node()) computed.insert(node.output().begin(), node.output().end());
  for (const onnx::NodeProto& node : graph.node()) {
    order.expect(node, computed);
    for (const std::string& output : node.output()) order.define(output, "node " + node.name());
  }
  if (graph.output_size() == 0) fail("it has no output");
  input_batch();
  for (const onnx::StringStringEntryProto& entry : model_.metadata_props())
    if (entry.key() == kPixels) pixels_ = parse_pixels(entry.value());
}

void OnnxFile::find_input() {
  std::vector<const onnx::ValueInfoProto*> inputs;
  for (const onnx::ValueInfoProto& input : graph().input())
    if (!initializers_.contains(input.name())) inputs.push_back(&input);
  const std::size_t count = inputs.size();
  if (count > 1)
    for (const FixedInput& fixed : kFixedInputs)
      if (std::erase_if(inputs, [&](const auto* input) { return input->name() == fixed.name; }) > 0)
        fixed_.push_back(fixed);
  if (inputs.size() != 1)
    fail(
        "it has {} inputs, but networks are supported that read images or tokens alone, or attention_mask and "
        "token_type_ids beside tokens: wrap the network in a module whose forward() takes one",
        count);
  input_ = inputs[0];
  for (const onnx::ValueInfoProto& input : graph().input())
    if (const auto found = std::ranges::find(fixed_, input.name(), &FixedInput::name); found != fixed_.end())
      check_fixed(input, *found);
}

void OnnxFile::check_fixed(const onnx::ValueInfoProto& input, FixedInput& fixed) const {
  const onnx::TypeProto::Tensor& type = input.type().tensor_type();
  fixed.truths = type.elem_type() == onnx::TensorProto::BOOL;
  const bool whole =
      type.elem_type() == onnx::TensorProto::INT64 || type.elem_type() == onnx::TensorProto::INT32 || fixed.truths;
  if (!reads_tokens() || !whole || type.shape().dim_size() != 2)
    fail("its input {} must be whole numbers {{batch, length}} beside tokens: export it without this input",
         input.name());
  const TokenInput tokens = token_input();
  const std::size_t batch = extent(input, 0), length = extent(input, 1);
  if ((batch > 0 && batch != tokens.batch) || (length > 0 && length != tokens.length))
    fail("its input {} is {}x{}, but the tokens are {}x{}, with 0 for open: export both with the same sizes",
         input.name(), batch, length, tokens.batch, tokens.length);
}

void OnnxFile::check_tensors() {
  std::set<std::string> names;
  bool of_checkpoint = false;
  for (const onnx::TensorProto& tensor : graph().initializer()) {
    if (!names.insert(tensor.name()).second) fail("a stored tensor computes {}, which exists already", tensor.name());
    of_checkpoint = of_checkpoint || stripped(tensor) || separated(tensor);
    if (stripped(tensor))
      checked_shape(tensor);
    else
      expect_data(tensor);
  }
  optimized_ = !of_checkpoint && is_optimized(graph());
}

std::size_t OnnxFile::extent(const onnx::ValueInfoProto& input, int dimension) {
  const std::int64_t value = input.type().tensor_type().shape().dim(dimension).dim_value();
  if (value < 0 || value > (1 << 20)) fail("its input {} has an extent of {}", input.name(), value);
  return static_cast<std::size_t>(value);
}

bool OnnxFile::reads_tokens() const {
  const auto type = input_->type().tensor_type().elem_type();
  return type == onnx::TensorProto::INT64 || type == onnx::TensorProto::INT32;
}

TokenInput OnnxFile::token_input() const {
  const int dimensions = input_->type().tensor_type().shape().dim_size();
  if (dimensions != 2)
    fail("its input {} has {} dimensions, but tokens have 2: batch, length", input_->name(), dimensions);
  return {input_extent(0), input_extent(1)};
}

std::size_t OnnxFile::input_batch() const {
  return reads_tokens() ? token_input().batch : input_shape()[0];
}

std::array<std::size_t, 4> OnnxFile::input_shape() const {
  const onnx::TypeProto::Tensor& type = input_->type().tensor_type();
  if (type.elem_type() != onnx::TensorProto::FLOAT && !raw_pixels())
    fail("its input {} is neither float32, as images are, nor int64, as tokens are", input_->name());
  if (type.shape().dim_size() != 4)
    fail("its input {} has {} dimensions, but images have 4: batch, channels, height, width", input_->name(),
         type.shape().dim_size());
  std::array<std::size_t, 4> shape{};
  for (std::size_t i = 0; i < shape.size(); ++i) {
    shape[i] = input_extent(static_cast<int>(i));
    if (shape[i] == 0 && i > 0)
      fail("its input {} leaves more than the batch open: export it with a fixed image size", input_->name());
  }
  if (channels_last_) return {shape[0], shape[3], shape[1], shape[2]};
  return shape;
}

void OnnxFile::set_pixels(Pixels pixels) {
  if (pixels == Pixels::automatic) return;
  if (reads_tokens()) fail("{}: it reads tokens: --pixels is for networks that read images", name_);
  if (raw_pixels())
    fail("{}: its input has whole numbers of 0 to 255: --pixels is for networks that read float32", name_);
  pixels_ = pixels;
}

std::string OnnxFile::without_values(const std::vector<std::string>& tensors, Pixels pixels) const {
  std::set<std::string> removed(tensors.begin(), tensors.end());
  for (const std::string& name : known_by_values(graph())) removed.erase(name);
  onnx::ModelProto model;
  model.set_ir_version(model_.ir_version());
  model.set_producer_name(model_.producer_name());
  *model.mutable_opset_import() = model_.opset_import();
  if (pixels != Pixels::automatic) {
    onnx::StringStringEntryProto& entry = *model.add_metadata_props();
    entry.set_key(kPixels);
    entry.set_value(annulus::name(pixels));
  }
  const onnx::GraphProto& from = graph();
  onnx::GraphProto& to = *model.mutable_graph();
  to.set_name(from.name());
  *to.mutable_input() = from.input();
  *to.mutable_output() = from.output();
  copy_marks(from, to);
  for (const onnx::NodeProto& node : from.node()) {
    onnx::NodeProto& copy = *to.add_node();
    copy = node;
    copy.clear_doc_string();
    set_only_property(copy, PropertyField::node, kScopes, property(node, PropertyField::node, kScopes));
  }
  for (const onnx::TensorProto& tensor : from.initializer()) {
    onnx::TensorProto& copy = *to.add_initializer();
    if (!removed.contains(tensor.name())) {
      copy = tensor;
      copy.set_doc_string(kSeparate);
      continue;
    }
    copy.set_name(tensor.name());
    copy.set_data_type(tensor.data_type());
    *copy.mutable_dims() = tensor.dims();
    copy.set_doc_string(kStripped);
  }
  return model.SerializeAsString();
}

}  // namespace annulus
