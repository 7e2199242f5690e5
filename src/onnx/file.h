#pragma once

#include <onnx/onnx_pb.h>

#include <array>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "src/onnx/pixels.h"
#include "src/onnx/separate_tensors.h"

namespace annulus {

// Token windows that a network reads, {batch, length}. An extent that the file leaves open is 0.
struct TokenInput {
  std::size_t batch, length;
};

// An input beside tokens, {batch, length}, that has the same number for each token of texts without gaps.
struct FixedInput {
  std::string name;
  std::int64_t value;
  const char* purpose;  // "hides padding"
  bool truths = false;  // of type bool
};

// An ONNX file in memory, checked: the graph has a single input, images or tokens, or fixed inputs beside tokens; every
// value is computed once and before it is read, and stored tensors have the data that they declare.
class OnnxFile {
 public:
  // Reads the file, and tensors stored in other files beside it. Throws Error naming the file.
  static OnnxFile read(const std::filesystem::path& file);

  // Parses a file without external tensors, such as without_values() returned. Throws Error naming `name`.
  static OnnxFile parse(std::string_view bytes, const std::string& name);

  const std::string& name() const { return name_; }
  const onnx::GraphProto& graph() const { return model_.graph(); }
  const std::string& producer() const { return model_.producer_name(); }
  const std::map<std::string_view, const onnx::TensorProto*>& initializers() const { return initializers_; }
  std::int64_t operators() const { return operators_; }  // the operator set's version

  const onnx::ValueInfoProto& input() const { return *input_; }
  bool reads_tokens() const;        // int64 or int32
  TokenInput token_input() const;   // REQUIRES: reads_tokens()
  std::size_t input_batch() const;  // 0: open
  const std::vector<FixedInput>& fixed_inputs() const { return fixed_; }

  // Images: float32 or, if raw_pixels(), uint8 from 0 to 255; {batch, channels, height, width} or, if channels_last(),
  // {batch, height, width, channels}. An extent that the file leaves open is 0. REQUIRES: reads no tokens.
  std::array<std::size_t, 4> input_shape() const;  // batch, channels, height, width
  bool raw_pixels() const { return input_->type().tensor_type().elem_type() == onnx::TensorProto::UINT8; }
  bool channels_last() const { return channels_last_; }

  // The pixels that the network reads, as without_values() or the user says. set_pixels() changes nothing for
  // Pixels::automatic, and throws Error if the network reads bytes.
  Pixels pixels() const { return pixels_; }
  void set_pixels(Pixels pixels);

  // Returns the file without these tensors' values, and without what only describes it. Such a tensor keeps its shape.
  std::string without_values(const std::vector<std::string>& tensors, Pixels pixels) const;

  static constexpr const char* kScopes = "pkg.torch.onnx.name_scopes";  // a node property

  // Whether without_values() removed a tensor's values.
  static bool stripped(const onnx::TensorProto& tensor) {
    return tensor.doc_string() == kStripped || tensor.doc_string() == kStrippedTogether;
  }
  // Whether without_values() wrote the tensor when it was known to be a single parameter.
  static bool separated(const onnx::TensorProto& tensor) {
    return tensor.doc_string() == kStripped || tensor.doc_string() == kSeparate;
  }

  // Whether PyTorch's optimizer changed the graph. False for a file that without_values() returned.
  bool optimized() const { return optimized_; }

  // Stored tensors are parameters, see there.
  const Separation& separation() const { return separation_; }

 private:
  static constexpr const char* kPixels = "annulus.pixels";  // a property of the model
  static constexpr const char* kStripped = "a parameter with values in the checkpoint";
  static constexpr const char* kSeparate = "a parameter or a constant";
  // Written by earlier versions, which trained a tensor's values separately for each node that reads it.
  static constexpr const char* kStrippedTogether = "values are in the checkpoint";

  void check();
  void find_input();
  void check_fixed(const onnx::ValueInfoProto& input, FixedInput& fixed) const;
  static std::size_t extent(const onnx::ValueInfoProto& input, int dimension);
  std::size_t input_extent(int dimension) const { return extent(*input_, dimension); }
  void check_tensors();

  std::string name_;
  onnx::ModelProto model_;
  std::map<std::string_view, const onnx::TensorProto*> initializers_;
  Separation separation_;
  std::int64_t operators_ = 0;
  bool channels_last_ = false, optimized_ = false;
  Pixels pixels_ = Pixels::automatic;
  const onnx::ValueInfoProto* input_ = nullptr;
  std::vector<FixedInput> fixed_;
};

}  // namespace annulus
