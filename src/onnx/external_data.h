#pragma once

#include <onnx/onnx_pb.h>

#include <filesystem>

namespace annulus {

// Replaces the references of a model's tensors to other files by these files' bytes: of stored tensors, and of those in
// attributes, branches and functions. The files must be in the folder of `file`, the model, or of the file that it is a
// link to, as in Hugging Face's cache, where both are links into another folder. Throws Error naming the tensor.
void load_external_data(onnx::ModelProto& model, const std::filesystem::path& file);

}  // namespace annulus
