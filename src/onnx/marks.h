#pragma once

#include <onnx/onnx_pb.h>

#include <map>
#include <string>
#include <vector>

// What torch.export says in a file about stored tensors. PyTorch's older exporter and other programs say nothing.
namespace annulus {

struct TensorMark {
  std::string kind;        // "PARAMETER", "BUFFER", "CONSTANT_TENSOR", ...
  bool persistent = true;  // a buffer that is in the state_dict
};

// Returns the marks by tensor name, also for tensors that the exporter replaced by others.
std::map<std::string, TensorMark> marks(const onnx::GraphProto& graph);

// Returns by the name of each stored tensor that the exporter computed: the values that it was computed from, and the
// values between.
std::map<std::string, std::vector<std::string>> sources(const onnx::GraphProto& graph);

// Returns the names of parameters and buffers by their names in torch.export's graph: "mid.k" by "b_mid_k".
std::map<std::string, std::string> placeholders(const onnx::GraphProto& graph);

// Whether PyTorch's optimizer changed a graph: parameters may have been removed or merged.
bool is_optimized(const onnx::GraphProto& graph);

// Gives a copy of a stored tensor the same mark, or gives it the source `to_parameter` instead of `parameter`.
void copy_mark(onnx::GraphProto& graph, const std::string& tensor, const std::string& to, const std::string& parameter,
               const std::string& to_parameter);

// Copies everything that marks() and sources() read.
void copy_marks(const onnx::GraphProto& from, onnx::GraphProto& to);

// Marks a tensor as a buffer.
void mark_buffer(onnx::ValueInfoProto& tensor);

// Returns the elements in a list of strings as Python writes it: "['', 'features', 'conv2d']".
std::vector<std::string> python_list(const std::string& text);

}  // namespace annulus
