#include "src/train/optimizer_options.h"

namespace annulus {
namespace {

AdamW adamw(const OptimizerOptions& options) {
  return {options.betas[0], options.betas[1], options.epsilon, options.weight_decay};
}

Muon muon(const OptimizerOptions& options) {
  Muon rule{.momentum = options.momentum,
            .weight_decay = options.weight_decay,
            .iteration =
                options.iteration == "polar-express" ? Muon::Iteration::polar_express : Muon::Iteration::newton_schulz,
            .steps = options.steps,
            .matches_adamw = options.scale == "adamw",
            .others = adamw(options)};
  if (options.others == "sgd") rule.others = Sgd{options.others_momentum, options.weight_decay};
  return rule;
}

}  // namespace

UpdateRule update_rule(const OptimizerOptions& options) {
  if (options.kind == "lars") return Lars{options.momentum, options.weight_decay, options.trust};
  if (options.kind == "adamw") return adamw(options);
  if (options.kind == "muon") return muon(options);
  return Sgd{options.momentum, options.weight_decay, options.nesterov};
}

}  // namespace annulus
