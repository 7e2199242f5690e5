#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/model.h"
#include "src/data/loader.h"
#include "src/step/ledger.h"

namespace annulus {

// What a training step is made of, as one rank without communication measures it: what the prediction of steps on other
// machines starts from. `annulus bench step --json` writes it as "profile":
//
//    {"model": "lenet", "batch": 64, "ranks": 1, "input_ms": 0.1, "optimizer_ms": 0.5,
//     "layers": [{"name": "conv1", "forward_ms": 1.2, "backward_ms": 2.3, "gradient_bytes": [1024, 64]}, ...]}
//
// "batch" is one rank's, "ranks" computed at the same time. Layers are in forward's order. "gradient_bytes" are those
// of each of a layer's parameters as they lie in the arena, padding included; backward finishes layer after layer from
// the last one, and in a layer one parameter after the other. All times are of a step; those of layers are medians.
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

// Forward and backward of this batch, layer by layer, for about so many seconds; gradients are overwritten and not
// summed. On a GPU layers run one by one, which takes longer than a step's recordings.
std::vector<LayerProfile> profile_layers(Model& model, const Batch& batch, double seconds);

nlohmann::json to_json(const StepProfile& profile);

// Of what bench step has written. Throws Error where the file holds no profile, or one that cannot be.
StepProfile read_profile(const std::filesystem::path& file);

}  // namespace annulus
