#include "src/onnx/external_data.h"

#include <algorithm>
#include <map>
#include <string>

#include "kernels/base/error.h"
#include "src/io/file_io.h"
#include "src/onnx/tensor.h"

namespace annulus {
namespace {

namespace fs = std::filesystem;

std::string external_property(const onnx::TensorProto& tensor, const std::string& key) {
  for (const onnx::StringStringEntryProto& entry : tensor.external_data())
    if (entry.key() == key) return entry.value();
  return "";
}

std::size_t whole_property(const onnx::TensorProto& tensor, const std::string& key, std::size_t missing) {
  const std::string text = external_property(tensor, key);
  if (text.empty()) return missing;
  if (text.size() > 18 || text.find_first_not_of("0123456789") != std::string::npos)
    fail("{}: {} of its external data is \"{}\"", tensor.name(), key, text);
  return std::stoull(text);
}

bool is_within(const fs::path& file, const fs::path& folder) {
  return std::mismatch(folder.begin(), folder.end(), file.begin(), file.end()).first == folder.end();
}

// Reads tensors from the files beside a model.
class Loader {
 public:
  explicit Loader(const fs::path& model) : folder_(model.parent_path()) {
    std::error_code error;
    here_ = fs::weakly_canonical(folder_.empty() ? "." : folder_, error);
    linked_ = fs::weakly_canonical(model, error).parent_path();
  }

  void load(onnx::TensorProto& tensor) {
    if (tensor.data_location() != onnx::TensorProto::EXTERNAL) return;
    const fs::path file = find(tensor);
    const FileDescriptor descriptor = open_to_read(file);
    const std::uint64_t size = size_of(descriptor, file);
    const std::size_t offset = whole_property(tensor, "offset", 0);
    const std::size_t wanted = raw_bytes(tensor), length = whole_property(tensor, "length", wanted);
    if (length != wanted) fail("{}: its values are {} bytes, but it needs {}", tensor.name(), length, wanted);
    if (offset > size || length > size - offset)
      fail("{}: its values are bytes {} to {} of {}, which has {}: copy it again, beside the ONNX file", tensor.name(),
           offset, offset + length, file.string(), size);
    std::error_code error;
    if ((loaded_[fs::weakly_canonical(file, error)] += length) > 2 * size)
      fail("{}: tensors with more bytes than {} are in it: they overlap", tensor.name(), file.string());
    std::string& raw = *tensor.mutable_raw_data();
    raw.resize(length);
    read_at(descriptor, file, offset, {reinterpret_cast<std::uint8_t*>(raw.data()), raw.size()});
    tensor.clear_external_data();
    tensor.clear_data_location();
  }

  void load(onnx::GraphProto& graph) {
    for (onnx::TensorProto& tensor : *graph.mutable_initializer()) load(tensor);
    for (onnx::NodeProto& node : *graph.mutable_node()) load(node);
  }

  void load(onnx::NodeProto& node) {
    for (onnx::AttributeProto& attribute : *node.mutable_attribute()) {
      if (attribute.has_t()) load(*attribute.mutable_t());
      for (onnx::TensorProto& tensor : *attribute.mutable_tensors()) load(tensor);
      if (attribute.has_g()) load(*attribute.mutable_g());
      for (onnx::GraphProto& graph : *attribute.mutable_graphs()) load(graph);
    }
  }

 private:
  // Returns the file with a tensor's values. A model that is a link may have it beside the link or beside the linked
  // file.
  fs::path find(const onnx::TensorProto& tensor) const {
    const fs::path location = external_property(tensor, "location");
    const bool below = location.is_relative() && !location.empty() &&
                       std::ranges::none_of(location, [](const auto& part) { return part == ".."; });
    std::error_code error;
    const fs::path beside = folder_ / location, file = fs::exists(beside, error) ? beside : linked_ / location;
    const fs::path real = fs::weakly_canonical(file, error);
    if (!below || error || (!is_within(real, here_) && !is_within(real, linked_)))
      fail("{}: its values are in {}, outside the file's folder", tensor.name(), location.string());
    if (!fs::exists(file, error)) fail("{}: missing: copy it together with the ONNX file", beside.string());
    return file;
  }

  const fs::path folder_;
  fs::path here_, linked_;  // without links: the model's folder, and the linked file's if the model is a link
  std::map<fs::path, std::uint64_t> loaded_;  // bytes that were read from each file
};

}  // namespace

void load_external_data(onnx::ModelProto& model, const fs::path& file) {
  Loader loader(file);
  if (model.has_graph()) loader.load(*model.mutable_graph());
  for (onnx::FunctionProto& function : *model.mutable_functions())
    for (onnx::NodeProto& node : *function.mutable_node()) loader.load(node);
}

}  // namespace annulus
