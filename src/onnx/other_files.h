#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace annulus {

// Files that users give as a network but that are none, and how to make one.

// Returns what the beginning of a file shows it to be if it is not ONNX, and what to do: an empty file, a pointer of
// git-lfs, a web page, a file of PyTorch, ... Returns an empty text if it is nothing that is known.
std::string other_content(std::string_view begin);

// The same for --model, which is neither a model's name nor ends with .onnx: by its content if there is such a file,
// and by its extension.
std::string other_network(const std::filesystem::path& model);

}  // namespace annulus
