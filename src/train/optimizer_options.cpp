#include "src/train/optimizer_options.h"

namespace annulus {

UpdateRule update_rule(const OptimizerOptions& options) {
  if (options.kind == "lars") return Lars{options.momentum, options.weight_decay, options.trust};
  if (options.kind == "adamw") return AdamW{options.betas[0], options.betas[1], options.epsilon, options.weight_decay};
  return Sgd{options.momentum, options.weight_decay, options.nesterov};
}

}  // namespace annulus
