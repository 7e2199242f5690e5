#pragma once

#include <onnx/onnx_pb.h>

#include <map>
#include <string>
#include <vector>

namespace annulus {

// Stored tensors and parameters.
struct Separation {
  std::vector<std::string> equal;  // parameters that were stored together with an equal parameter
  std::map<std::string, std::vector<std::string>> aliases;  // by tensor: further names that PyTorch has for it
  // By name, parameters that are taken for a second name of another parameter, because nothing reads them: see
  // Separator::name_held().
  std::map<std::string, std::string> held;
};

// Makes each stored tensor in a graph a single parameter. Exporters store equal tensors once, such as scales of norms
// that have never been trained, and PyTorch trains each on its own: these become separate tensors. Tensors that several
// nodes still read are shared in PyTorch: by several calls of a module, or by modules that are tied.
//
// PyTorch's newer exporter separates both cases by the parameters that it traced for a node, the older exporter by an
// Identity for each equal tensor. Files that have lost these are read by the modules after which nodes are named: a
// parameter is shared by its own module's calls, and by other modules if its elements are not initial values, and the
// modules not copies in a list.
//
// Tensors that the exporter transposed beside the parameter itself become the parameter's transpose again.
Separation separate_tensors(onnx::GraphProto& graph);

}  // namespace annulus
