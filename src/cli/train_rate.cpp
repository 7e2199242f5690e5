#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <sstream>
#include <string>
#include <vector>

#include "src/cli/choices.h"
#include "src/cli/numbers.h"
#include "src/cli/train_options.h"
#include "src/train/schedule.h"

namespace annulus {
namespace {

const std::vector<std::string> kSchedules{"constant", "step", "cosine", "polynomial", "one-cycle", "cyclic", "plateau"};

std::vector<double> parse_epochs(const std::string& option, const std::string& text) {
  std::vector<double> epochs;
  std::istringstream list(text);
  for (std::string epoch; std::getline(list, epoch, ',');)
    epochs.push_back(parse_number(option, epoch, number_above(0)));
  return epochs;
}

// Parses "step:30,60,80": a schedule's name, with the value that belongs to it after a colon.
void parse_schedule(const std::string& text, ScheduleOptions& o) {
  const std::size_t colon = std::min(text.find(':'), text.size());
  const std::string kind = text.substr(0, colon);
  if (const std::string complaint = one_of(kSchedules)(kind); !complaint.empty())
    throw CLI::ValidationError("--schedule", complaint);
  o.kind = kind;
  if (colon == text.size()) return;
  const std::string option = "--schedule " + kind, value = text.substr(colon + 1);
  const auto number = [&](const CLI::Validator& validator) { return parse_number(option, value, validator); };
  if (kind == "step") {
    o.steps = parse_epochs(option, value);
  } else if (kind == "polynomial") {
    o.power = number(number_above(0));
  } else if (kind == "cyclic") {
    o.cycle = number(number_above(0));
  } else if (kind == "plateau") {
    o.patience = static_cast<std::size_t>(number(whole_number(0)));
  } else {
    throw CLI::ValidationError(option, fmt::format("takes no value, such as {}", in_quotes(value)));
  }
}

// Parses "5:0.1": epochs, and the fraction with which warm-up starts.
void parse_warmup(const std::string& text, ScheduleOptions& o) {
  const std::size_t colon = std::min(text.find(':'), text.size());
  o.warmup = parse_number("--warmup", text.substr(0, colon), number_from(0));
  if (colon < text.size()) o.warmup_from = parse_number("--warmup", text.substr(colon + 1), number_from(0, 1));
}

}  // namespace

void add_rate_options(CLI::App& command, ScheduleOptions& o) {
  const auto add = [&](const std::string& name, auto& value, const std::string& help) {
    return command.add_option(name, value, help)->capture_default_str()->group("Learning rate");
  };
  const auto add_text = [&](const std::string& name, auto parse, const std::string& help) {
    return command
        .add_option_function<std::string>(
            name, [parse, &o](const std::string& text) { parse(text, o); }, help)
        ->group("Learning rate");
  };
  add("--lr-per", o.reference_batch,
      "Linear scaling rule: --lr is scaled by global batch / N, such as 256; 0: no scaling")
      ->transform(whole_number(0));
  add_text(
      "--warmup", parse_warmup,
      "Linear warm-up: epochs, such as 5 or 0.5, and the fraction of the rate at the start, such as 5:0.1; without "
      "a fraction from 0, with --lr-per from --lr, with one-cycle from 1/25")
      ->type_name("EPOCHS[:SHARE]")
      ->default_str("0");
  add_text("--schedule", parse_schedule,
           "Schedule after warm-up, with the value that belongs to it:\n"
           "constant       unchanged\n"
           "step:30,60,80  multiplied by --lr-factor after each of these epochs\n"
           "cosine         falls along half a cosine, over all --epochs\n"
           "polynomial:2   falls as (1 - x)^2, over all --epochs; the power is 2 unless given\n"
           "one-cycle      cosine, and warm-up also along half a cosine, by default over 30 % of --epochs from 1/25 of "
           "the rate\n"
           "cyclic:4       rises and falls linearly every 4 epochs\n"
           "plateau:10     multiplied by --lr-factor when more than 10 evaluations, 10 unless given, are not the best")
      ->default_str("constant");
  add("--lr-factor", o.factor, "Factor of --schedule step and plateau")->transform(number_above(0));
  add("--lr-end", o.end,
      "Final rate (cosine, polynomial, one-cycle) or lowest rate (cyclic, plateau), not scaled with the global batch")
      ->transform(number_from(0));
}

}  // namespace annulus
