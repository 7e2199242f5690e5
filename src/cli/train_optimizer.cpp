#include <algorithm>
#include <functional>

#include "src/cli/choices.h"
#include "src/cli/numbers.h"
#include "src/cli/option_kinds.h"
#include "src/cli/settings.h"
#include "src/cli/train_options.h"

namespace annulus {
namespace {

// "layer1=0.1". A pattern may contain further equals signs.
PatternValue parse_pattern_value(const std::string& option, const std::string& text) {
  const std::size_t equals = text.rfind('=');
  if (equals == std::string::npos || equals == 0)
    throw CLI::ValidationError(option, unexpected("PATTERN=NUMBER, such as layer1=0.1", text));
  return {text.substr(0, equals), static_cast<float>(parse_number(option, text.substr(equals + 1), number_from(0)))};
}

void parse_optimizer(const std::vector<std::string>& texts, OptimizerOptions& o) {
  Settings settings("--optimizer", texts, {"sgd", "lars", "adamw", "muon"});
  const auto number = [&](const std::string& key, float initial, const CLI::Validator& validator) {
    return static_cast<float>(settings.number(key, initial, validator));
  };
  const auto beta = [&](const std::string& key, float initial) {
    const float value = number(key, initial, number_from(0, 1));
    if (value == 1) throw CLI::ValidationError("--optimizer " + key, "must be below 1");
    return value;
  };
  const auto choice = [&](const std::string& key, std::string& value, const std::vector<std::string>& choices) {
    if (const auto text = settings.text(key)) value = *text;
    if (const std::string complaint = one_of(choices)(value); !complaint.empty())
      throw CLI::ValidationError("--optimizer " + key, complaint);
  };
  OptimizerOptions chosen;
  chosen.kind = settings.name();
  if (chosen.kind == "muon") {
    chosen.momentum = 0.95f;
    choice("iteration", chosen.iteration, {"polar-express", "newton-schulz"});
    chosen.steps = static_cast<std::size_t>(
        settings.number("steps", chosen.iteration == "polar-express" ? 6 : 5, whole_number(1, 20)));
    choice("scale", chosen.scale, {"adamw", "shape"});
    choice("others", chosen.others, {"adamw", "sgd"});
    if (chosen.others == "sgd")
      chosen.others_momentum = number("others-momentum", chosen.others_momentum, number_from(0, 1));
  }
  if (chosen.kind == "adamw" || (chosen.kind == "muon" && chosen.others == "adamw")) {
    chosen.betas = {beta("beta1", chosen.betas[0]), beta("beta2", chosen.betas[1])};
    chosen.epsilon = number("eps", chosen.epsilon, number_above(0));
  }
  if (chosen.kind != "adamw") chosen.momentum = number("momentum", chosen.momentum, number_from(0, 1));
  if (chosen.kind == "sgd") chosen.nesterov = settings.flag("nesterov");
  if (chosen.kind == "lars") chosen.trust = number("trust", chosen.trust, number_above(0));
  settings.expect_no_other();
  chosen.weight_decay = o.weight_decay;
  o = chosen;
}

// Parses "1e-4,fc=0.01": the weight decay, and exceptions by layer or parameter.
void parse_weight_decay(const std::vector<std::string>& texts, TrainOptions& o) {
  o.optimizer.weight_decay = 0;
  o.weight_decays.clear();
  for (const std::string& text : texts)
    if (text.find('=') != std::string::npos) {
      o.weight_decays.push_back(parse_pattern_value("--weight-decay", text));
    } else if (&text == &texts.front()) {
      o.optimizer.weight_decay = static_cast<float>(parse_number("--weight-decay", text, number_from(0)));
    } else {
      throw CLI::ValidationError("--weight-decay", unexpected("PATTERN=NUMBER after the first, such as fc=0.01", text));
    }
}

// Parses "5:0.77": steps, and the decay.
void parse_lookahead(const std::string& text, LookaheadOptions& o) {
  o = {};
  if (text == "0") return;
  const std::string option = "--lookahead";
  const std::size_t colon = text.find(':');
  if (colon == std::string::npos) throw CLI::ValidationError(option, unexpected("steps:decay, such as 5:0.77", text));
  o.every = static_cast<std::size_t>(parse_number(option, text.substr(0, colon), whole_number(1)));
  o.decay = parse_number(option, text.substr(colon + 1), number_above(0));
  if (o.decay >= 1) throw CLI::ValidationError(option, "the decay must be below 1");
}

}  // namespace

CLI::Option* add_optimizer_option(CLI::App& command, OptimizerOptions& o) {
  return add_settings_option(
             command, "--optimizer", [&o](const std::vector<std::string>& texts) { parse_optimizer(texts, o); },
             "Optimizer: sgd, lars, adamw or muon; and settings, such as sgd,nesterov or adamw,beta2=0.95:\n"
             "momentum=0.9       momentum (sgd, lars; muon: 0.95)\n"
             "nesterov           Nesterov momentum (sgd)\n"
             "trust=0.001        trust coefficient: a layer's rate is this times norm of weights / norm of gradient "
             "(lars)\n"
             "beta1=0.9          decay of the first moment (adamw, muon)\n"
             "beta2=0.999        decay of the second moment (adamw, muon)\n"
             "eps=1e-8           added to the root of the second moment (adamw, muon)\n"
             "iteration=...      polar-express or newton-schulz: how matrices become orthogonal (muon)\n"
             "steps=6            steps of the iteration (muon; newton-schulz: 5)\n"
             "scale=adamw        size of a matrix's update: as adamw's, or by its shape (muon)\n"
             "others=adamw       update of parameters that are no matrices: adamw or sgd (muon)\n"
             "others-momentum=0.9  momentum of others=sgd (muon)")
      ->default_str("sgd")
      ->group("Optimizer");
}

void add_optimizer_options(CLI::App& command, TrainOptions& o) {
  const auto add = [&](const std::string& name, auto& value, const std::string& help) {
    return command.add_option(name, value, help)->capture_default_str()->group("Optimizer");
  };
  add_optimizer_option(command, o.optimizer);
  add("--muon-lr", o.muon_rate, "Rate of the matrices of --optimizer muon, scheduled like --lr; 0: --lr")
      ->transform(number_from(0));
  add_list_option(command, "--muon-except", o.muon_except, std::identity(),
                  "Layers or parameters that --optimizer muon updates like embeddings and biases, such as patch_embed")
      ->type_name("PATTERN")
      ->group("Optimizer");
  add_settings_option(
      command, "--weight-decay", [&o](const std::vector<std::string>& texts) { parse_weight_decay(texts, o); },
      "Weight decay, not applied to biases and batch norm; and of layers or parameters, also of their biases, such as "
      "1e-4,fc=0.01")
      ->type_name("NUMBER")
      ->default_str("0")
      ->group("Optimizer");
  add("--clip-norm", o.clip_norm, "Maximum norm of the gradient over all parameters; 0: no clipping")
      ->transform(number_from(0));
  add("--skip-not-finite", o.skip_not_finite,
      "Check each rank's gradients before an update, and skip the update if one is infinite or NaN, at most N times in "
      "a "
      "row; 0: no check")
      ->transform(whole_number(0));
  add("--ema", o.ema, "Decay, such as 0.9999, of a moving average of the weights, which is then evaluated; 0: none")
      ->transform(number_from(0, 0.9999999));
  command
      .add_option_function<std::string>(
          "--lookahead", [&o](const std::string& text) { parse_lookahead(text, o.lookahead); },
          "Lookahead: every N steps the weights become their average, whose decay rises to DECAY with the cube of the "
          "run's progress, such as 5:0.77; the average is evaluated; 0: off")
      ->type_name("N:DECAY")
      ->default_str("0")
      ->group("Optimizer");
}

void add_fine_tuning_options(CLI::App& command, TrainOptions& o) {
  const std::string group = "Fine-tuning";
  command
      .add_option(
          "--weights", o.weights,
          "Initial weights: random, those of the ONNX file of --model (auto), or those of a .safetensors file, a "
          "checkpoint or a run's folder; a head with another number of classes remains random")
      ->type_name("FILE")
      ->capture_default_str()
      ->group(group);
  add_list_option(command, "--freeze", o.freeze, std::identity(),
                  "Layers or parameters that do not change, such as conv1,bn1,layer?.*.bn1 (* and ? match any text and "
                  "character)")
      ->type_name("PATTERN")
      ->group(group);
  add_list_option(
      command, "--freeze-after", o.freeze_after,
      [](const std::string& text) { return parse_pattern_value("--freeze-after", text); },
      "Epochs after which layers or parameters do not change any more, such as conv1=3")
      ->type_name("PATTERN=EPOCHS")
      ->group(group);
  add_list_option(
      command, "--lr-for", o.rate_factors,
      [](const std::string& text) { return parse_pattern_value("--lr-for", text); },
      "Factors of --lr for layers or parameters, such as layer1=0.1,head=10 (head: the last layer with weights, unless "
      "a part of the network has this name)")
      ->type_name("PATTERN=NUMBER")
      ->group(group);
}

}  // namespace annulus
