#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/model.h"
#include "src/data/loader.h"
#include "src/step/ledger.h"

namespace annulus {

// The parts of a training step, measured on one rank without communication: the input for predicting steps on other
// machines. `annulus bench step --json` writes it as "profile":
//
//    {"model": "lenet", "batch": 64, "ranks": 1, "input_ms": 0.1, "optimizer_ms": 0.5,
//     "layers": [{"name": "conv1", "forward_ms": 1.2, "backward_ms": 2.3, "gradient_bytes": [1024, 64]}, ...]}
//
// "batch" is per rank; "ranks" is the number of ranks that computed at the same time. Layers are in forward's order.
// "gradient_bytes" has the size of each parameter of a layer in the arena, padding included; backward finishes the
// layers from the last to the first, and a layer's parameters in order. All times are per step; those of layers are
// medians.
struct LayerProfile {
  std::string name;
  double forward_seconds = 0, backward_seconds = 0;
  std::vector<std::size_t> gradient_bytes;
};

struct StepProfile {
  std::string model;
  std::size_t batch = 0, ranks = 1;
  double input_seconds = 0, optimizer_seconds = 0;
  std::vector<LayerProfile> layers;

  double forward_seconds() const;
  double backward_seconds() const;
};

// Measures forward and backward of this batch, layer by layer, for about `seconds`. Gradients are overwritten and not
// all-reduced. On a GPU layers run one by one, which is slower than a step's CUDA graphs.
std::vector<LayerProfile> profile_layers(Model& model, const Batch& batch, double seconds);

nlohmann::json to_json(const StepProfile& profile);

// Reads the profile from the output of bench step. Throws Error if the file has no profile or an invalid one.
StepProfile read_profile(const std::filesystem::path& file);

}  // namespace annulus
