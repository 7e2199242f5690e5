#include "src/train/optimizer_options.h"

#include "kernels/base/error.h"

namespace annulus {

void check(const OptimizerOptions& options) {
  const OptimizerOptions defaults;
  if (options.nesterov && options.kind != "sgd")
    fail("--nesterov belongs to --optimizer sgd, and this is {}: remove it, or give --nesterov=false", options.kind);
  if (options.trust != defaults.trust && options.kind != "lars")
    fail("--trust belongs to --optimizer lars, and this is {}", options.kind);
  if ((options.betas != defaults.betas || options.epsilon != defaults.epsilon) && options.kind != "adamw")
    fail("--adam-betas and --epsilon belong to --optimizer adamw, and this is {}", options.kind);
  if (options.momentum != defaults.momentum && options.kind == "adamw")
    fail("--momentum belongs to --optimizer sgd or lars, and this is adamw, which has --adam-betas");
}

UpdateRule update_rule(const OptimizerOptions& options) {
  if (options.kind == "lars") return Lars{options.momentum, options.weight_decay, options.trust};
  if (options.kind == "adamw") return AdamW{options.betas[0], options.betas[1], options.epsilon, options.weight_decay};
  return Sgd{options.momentum, options.weight_decay, options.nesterov};
}

}  // namespace annulus
