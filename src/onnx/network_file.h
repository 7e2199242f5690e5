#pragma once

#include <string>

#include "models/zoo/zoo.h"

namespace annulus {

// Networks by what --model names: one of the zoo's, or an ONNX file.

bool is_network_file(const std::string& model);  // by its extension, .onnx

// The name for results and checkpoints: the zoo's, or the file's without its folder.
std::string network_name(const std::string& model);

// Builds the network. `onnx`: the bytes of its file, with or without the parameters' values; empty for the zoo's.
// Throws Error like make_model() and read_network().
Graph make_network(const std::string& model, const std::string& onnx, const Task& task);

// Builds the network of a file on the disk, without its values, or the zoo's.
Graph make_network(const std::string& model, const Task& task);

// The task for which a file was exported or that a network of the zoo is commonly trained for, with random data.
Task default_task(const std::string& model);

}  // namespace annulus
