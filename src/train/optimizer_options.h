#pragma once

#include <string>
#include <vector>

#include "kernels/update.h"

namespace annulus {

// The optimizer of `annulus train`, with the options of all optimizers.
struct OptimizerOptions {
  std::string kind = "sgd";
  float momentum = 0.9f;
  bool nesterov = false;
  float weight_decay = 0;
  float trust = 0.001f;
  std::vector<float> betas{0.9f, 0.999f};
  float epsilon = 1e-8f;
  // Of muon, see Muon.
  std::string iteration = "polar-express";
  std::size_t steps = 6;
  std::string scale = "adamw";
  std::string others = "adamw";
  float others_momentum = 0.9f;
};

UpdateRule update_rule(const OptimizerOptions& options);

}  // namespace annulus
