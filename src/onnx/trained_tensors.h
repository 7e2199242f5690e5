#pragma once

#include <map>
#include <string>
#include <vector>

#include "src/onnx/file.h"

namespace annulus {

enum class Training {
  always,     // a parameter
  in_layers,  // computed by an exporter: trained as a layer's weights, bias, scale or slopes, else a constant
  never,      // a buffer or a constant
};

// Decides which stored tensors in an ONNX file are trained: the tensors that torch.export marked as parameters. Files
// without marks do not say; then every tensor is trained unless an exporter made up its name, or its values are a
// buffer's (buffer_values.h). Whole numbers are never trained, and running statistics follow the batches.
class TrainedTensors {
 public:
  static constexpr const char *kBuffer = "a buffer", *kConstant = "a constant";  // reasons

  explicit TrainedTensors(const OnnxFile& file);

  struct Decision {
    Training training;
    std::string reason;     // why it is not always trained; empty if it was computed from numbers in the code
    std::string parameter;  // the tensor's name in PyTorch's state_dict; empty if it is not there
  };
  // REQUIRES: the file stores the tensor.
  const Decision& of(const onnx::TensorProto& tensor) const { return decisions_.at(&tensor); }

  // Whether the file has marks: then a parameter that cannot be trained is an error.
  bool marked() const { return marked_; }

  // Returns the marked parameters that no stored tensor is.
  const std::vector<std::string>& missing() const { return missing_; }

  // Whether Constant nodes' values are trained in layers: if the file stores no parameters elsewhere.
  bool constants_in_layers() const { return constants_in_layers_; }

 private:
  std::map<const onnx::TensorProto*, Decision> decisions_;
  bool marked_ = false, constants_in_layers_ = false;
  std::vector<std::string> missing_;
};

}  // namespace annulus
