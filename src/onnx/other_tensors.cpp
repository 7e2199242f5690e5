#include "src/onnx/other_tensors.h"

#include "src/onnx/tensor.h"
#include "src/onnx/trained_tensors.h"

namespace annulus {

std::vector<OtherTensor> other_tensors(const OnnxFile& file, const std::set<std::string>& known) {
  const TrainedTensors trained(file);
  std::vector<OtherTensor> others;
  for (const onnx::TensorProto& tensor : file.graph().initializer()) {
    if (trained.of(tensor).parameter != tensor.name() || known.contains(tensor.name()) || OnnxFile::stripped(tensor))
      continue;
    if (is_real(tensor))
      others.push_back({tensor.name(), checked_shape(tensor), read_floats(tensor)});
    else
      others.push_back({tensor.name(), checked_shape(tensor), read_tensor(tensor).wholes});
  }
  return others;
}

}  // namespace annulus
