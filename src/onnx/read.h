#pragma once

#include <map>
#include <string>
#include <vector>

#include "models/zoo/zoo.h"
#include "src/onnx/file.h"
#include "src/onnx/trained_summary.h"

namespace annulus {

// A network that PyTorch exported, as a graph that can be trained.
struct ImportedNetwork {
  Graph graph;
  // By parameter name in the graph. Values are missing if the file has none, or if the layer was replaced.
  std::map<std::string, std::vector<float>> values;
  std::vector<std::string> stored;  // the file's tensors that are only parameters: the graph does not need their values
  std::vector<std::string> notes;   // messages for the user: layers that were dropped or replaced
  TrainedSummary trained;
  Pixels pixels = Pixels::automatic;  // what the network reads, as the file says or the first operations suggest
};

// Reads the network in an ONNX file for a task. Layers are named after the file's parameters: "features.0.0.weight"
// belongs to layer "features.0.0". If the task has another class count, the last layer is replaced. Throws Error naming
// the file, the node and the operator.
//
// TrainedTensors decides which stored tensors are trained.
ImportedNetwork read_network(const OnnxFile& file, const Task& task);

// Returns the file's bytes without the values of the graph's parameters, for a checkpoint, which has them. The bytes
// name the pixels that the network reads.
std::string without_parameters(const OnnxFile& file, const ImportedNetwork& network);

// Returns a line for each node that cannot be read; empty if the network can be trained.
std::vector<std::string> problems(const OnnxFile& file, const Task& task);

// Returns the task that the file was exported for, with random images.
Task exported_task(const OnnxFile& file);

// Returns the operators that are supported for values that depend on images: "Add, AveragePool, ...".
std::string operator_names();

}  // namespace annulus
