#pragma once

#include <string>

#include "models/zoo/zoo.h"

namespace annulus {

// Networks as --model names them: in the zoo, or in an ONNX file.

bool is_network_file(const std::string& model);  // by the extension, .onnx

// Returns the name for results and checkpoints: the zoo's (see zoo_entry()), or the file's without the folder.
std::string network_name(const std::string& model);

// Builds the network. `onnx`: the file's bytes, with or without the parameters' values; empty for the zoo. Throws Error
// like make_model() and read_network().
Graph make_network(const std::string& model, const std::string& onnx, const Task& task);

// Builds the network from a file on disk, without values, or from the zoo.
Graph make_network(const std::string& model, const Task& task);

// Returns the task that a file was exported for or that a zoo network is commonly trained for, with random data.
Task default_task(const std::string& model);

}  // namespace annulus
