#pragma once

#include <onnx/onnx_pb.h>

#include <filesystem>

namespace annulus {

// Replaces a model's references to other files by these files' bytes: in stored tensors, and in tensors in attributes,
// branches and functions. The files must be in the folder of `file`, the model, or, if that is a link, of the linked
// file, as in Hugging Face's cache, where both are links into another folder. Throws Error naming the tensor.
void load_external_data(onnx::ModelProto& model, const std::filesystem::path& file);

}  // namespace annulus
