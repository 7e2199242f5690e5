#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "collectives/all_reduce.h"
#include "models/network/model.h"
#include "src/data/loader.h"
#include "src/step/ledger.h"

namespace annulus {

// A training step's parts, measured on a single rank without communication: the input for predicting steps on other
// machines. `annulus bench step --json` writes it as "profile":
//
//    {"model": "lenet", "batch": 64, "ranks": 1, "input_ms": 0.1, "optimizer_ms": 0.5,
//     "layers": [{"name": "conv1", "forward_ms": 1.2, "backward_ms": 2.3, "gradient_bytes": [1024, 64]}, ...]}
//
// "batch" is per rank; "ranks" counts the ranks that computed at the same time. Layers are in forward's order.
// "gradient_bytes" has the size of each layer parameter in the arena, padding included; backward finishes the
// layers from the last to the first, and a layer's parameters in order. A shared parameter's gradient belongs to
// its last layer. All times are per step; layers' times are medians, scaled so that their sum is the step's
// computation.
//
// A layer also has, if its backward reports gradients as final before it ends,
//
//     "early": [{"gradient_bytes": 1088, "ms": 0.4}, ...]
//
// in ascending order: this many bytes from the layer's first gradient on are final this long after the layer's backward
// began.
//
// For a language model, "batch" counts windows of "length" tokens; if the head shares the token embedding, the profile
// also has
//
//     "embedding": {"vocabulary": 50257, "row_bytes": 3072, "own_ms": 0.8, "row_us": 0.3}
struct LayerProfile {
  struct Early {
    std::size_t gradient_bytes;
    double seconds;
  };

  std::string name;
  double forward_seconds = 0, backward_seconds = 0;
  std::vector<std::size_t> gradient_bytes;
  std::vector<Early> early{};

  void scale(double times);  // multiplies all times
};

// Exchanging a shared token embedding's rows at the end of a step, without all-reduces.
struct EmbeddingProfile {
  std::size_t vocabulary = 0;
  std::size_t row_bytes = 0;  // for a token, in float32
  double own_seconds = 0;     // for this rank's tokens
  double row_seconds = 0;     // for each different token in the global batch

  // Returns how many different tokens to expect among `tokens` random tokens, all equally likely as in `bench step`.
  // Text has fewer.
  double different_tokens(std::size_t tokens) const;
};

struct StepProfile {
  std::string model;
  std::size_t batch = 0, ranks = 1;
  std::size_t length = 0;  // tokens in a window; 0: samples are images
  double input_seconds = 0, optimizer_seconds = 0;
  std::vector<LayerProfile> layers;
  std::optional<EmbeddingProfile> embedding{};

  std::string batch_text() const;  // "32 images", "8 windows of 64 tokens"
  double forward_seconds() const;
  double backward_seconds() const;
};

// Measures forward and backward on this batch, layer by layer, for about `seconds`. Gradients are overwritten and not
// all-reduced. On a GPU layers run separately, which is slower than a step's CUDA graphs.
std::vector<LayerProfile> profile_layers(Model& model, const Batch& batch, double seconds);

// Measures how long exchanging a shared embedding's rows takes; returns nothing if none is shared. `none` allocates the
// arrays and sums nothing. REQUIRES: the model's last backward was on this batch.
std::optional<EmbeddingProfile> profile_embedding(Model& model, const Batch& batch, AllReduce& none);

nlohmann::json to_json(const StepProfile& profile);

// Reads the profile from bench step's output. Throws Error if the file has no valid profile.
StepProfile read_profile(const std::filesystem::path& file);

}  // namespace annulus
