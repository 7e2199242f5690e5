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
  // By the graph's names of its parameters. Values are missing if the file has none, or if the layer was replaced.
  std::map<std::string, std::vector<float>> values;
  std::vector<std::string> stored;  // the file's tensors that are only parameters: the graph does not need their values
  std::vector<std::string> notes;   // messages for the user: layers that were dropped or replaced
  TrainedSummary trained;
  Pixels pixels = Pixels::automatic;  // that the network reads, as the file says or as its first operations suggest
};

// Reads the network of an ONNX file for a task. Layers are named after the file's parameters: "features.0.0.weight"
// belongs to layer "features.0.0". If the task has another number of classes, the last layer is replaced. Throws Error
// naming the file, the node and its operator.
//
// TrainedTensors decides which stored tensors are trained.
ImportedNetwork read_network(const OnnxFile& file, const Task& task);

// The file's bytes without the values of the graph's parameters: for a checkpoint, which has them. They name the pixels
// that the network reads.
std::string without_parameters(const OnnxFile& file, const ImportedNetwork& network);

// One line for each node that cannot be read; empty if the network can be trained.
std::vector<std::string> problems(const OnnxFile& file, const Task& task);

// The task for which the file was exported, with random images.
Task exported_task(const OnnxFile& file);

}  // namespace annulus
