#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace annulus {

// Files that users give as a network although they are not ONNX, and how to make an ONNX file.

// Returns what a file's beginning shows it to be if it is not ONNX, and what to do: an empty file, a git-lfs pointer, a
// web page, a PyTorch file, ... Returns an empty text if it is nothing that is known.
std::string other_content(std::string_view begin);

// Like other_content(), for a --model that is neither a model's name nor ends with .onnx: by content if there is such a
// file, and by extension.
std::string other_network(const std::filesystem::path& model);

}  // namespace annulus
