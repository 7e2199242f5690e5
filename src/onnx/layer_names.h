#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "src/onnx/graph_builder.h"
#include "src/onnx/trained_tensors.h"

namespace annulus {

// Names the built layers and their parameters in the graph. A parameter that is stored under a name from PyTorch's
// state_dict keeps the name; any other is named after the layer.
class LayerNames {
 public:
  struct Layer {
    std::string layer;
    std::map<std::string, std::string> parameters;  // by name in the operation: parameters that keep a stored name
  };

  // `used`: the built layers that become layers of the graph.
  LayerNames(const GraphBuilder& builder, const std::vector<bool>& used, const TrainedTensors& trained);

  const Layer& operator[](std::size_t layer) const { return layers_[layer]; }

 private:
  void keep_stored_names(const GraphBuilder& builder, const std::vector<bool>& used, const TrainedTensors& trained);
  std::string unique(std::string name, const std::vector<std::string>& parameters, const Layer& layer);

  std::set<std::string> taken_layers_, taken_parameters_;
  std::map<std::string, int> numbers_;  // how many numbers were tried for a name
  std::vector<Layer> layers_;
};

}  // namespace annulus
