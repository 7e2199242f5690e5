#include <algorithm>
#include <functional>

#include "src/cli/choices.h"
#include "src/cli/numbers.h"
#include "src/cli/option_kinds.h"
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

}  // namespace

void add_optimizer_options(CLI::App& command, TrainOptions& o) {
  const auto add = [&](const std::string& name, auto& value, const std::string& help) {
    return command.add_option(name, value, help)->capture_default_str()->group("Optimizer");
  };
  add("--optimizer", o.optimizer.kind, "Optimizer: sgd, lars or adamw")->check(one_of({"sgd", "lars", "adamw"}));
  add("--momentum", o.optimizer.momentum, "Momentum (sgd, lars)")->transform(number_from(0, 1));
  command.add_flag("--nesterov", o.optimizer.nesterov, "Nesterov momentum (sgd)")->group("Optimizer");
  add("--weight-decay", o.optimizer.weight_decay, "Weight decay; not applied to biases and batch norm")
      ->transform(number_from(0));
  add("--trust", o.optimizer.trust,
      "Trust coefficient: a layer's rate is this times norm of weights / norm of gradient (lars)")
      ->transform(number_above(0));
  const auto parse_betas = [&o](const std::string& text) {
    const std::size_t comma = text.find(',');
    const auto beta = [](const std::string& part) {
      return static_cast<float>(parse_number("--adam-betas", part, number_from(0, 1)));
    };
    if (comma != std::string::npos) o.optimizer.betas = {beta(text.substr(0, comma)), beta(text.substr(comma + 1))};
    if (comma == std::string::npos || std::ranges::any_of(o.optimizer.betas, [](float one) { return one == 1; }))
      throw CLI::ValidationError(
          "--adam-betas",
          fmt::format("expected two numbers from 0 to below 1, such as 0.9,0.999, not {}", in_quotes(text)));
  };
  command
      .add_option_function<std::string>("--adam-betas", parse_betas, "Decay of the two moments, beta1,beta2 (adamw)")
      ->type_name("BETAS")
      ->default_str("0.9,0.999")
      ->group("Optimizer");
  add("--epsilon", o.optimizer.epsilon, "Epsilon, added to the root of the second moment (adamw)")
      ->transform(number_above(0));
  add("--clip-norm", o.clip_norm, "Maximum norm of the gradient over all parameters; 0: no clipping")
      ->transform(number_from(0));
  add("--ema", o.ema, "Decay, such as 0.9999, of a moving average of the weights, which is then evaluated; 0: none")
      ->transform(number_from(0, 0.9999999));
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
  const auto add_values = [&](const std::string& name, std::vector<PatternValue>& values, const std::string& help) {
    add_list_option(
        command, name, values, [name](const std::string& text) { return parse_pattern_value(name, text); }, help)
        ->type_name("PATTERN=NUMBER")
        ->group(group);
  };
  add_values("--lr-for", o.rate_factors, "Factors of --lr for layers or parameters, such as layer1=0.1,layer2=0.3");
  add_values("--weight-decay-for", o.weight_decays,
             "Weight decay of layers or parameters, such as fc=0.01; also applied to their biases");
  command.add_option("--head-lr", o.head_rate, "Factor of --lr for the head, the last layer with weights")
      ->transform(number_from(0))
      ->capture_default_str()
      ->group(group);
}

}  // namespace annulus
