#include "src/results.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/atomic_file.h"

namespace annulus {
namespace {

double per_second(std::size_t count, double seconds) {
  return seconds > 0 ? static_cast<double>(count) / seconds : 0;
}

std::string spoken(std::string_view name) {
  std::string text(name);
  std::ranges::replace(text, '_', ' ');
  return text;
}

}  // namespace

nlohmann::json ledger_json(const StepTimes& times) {
  nlohmann::json json;
  for (std::size_t part = 0; part < StepTimes::kParts; ++part) json[StepTimes::kNames[part]] = times.seconds[part];
  json["wall"] = times.wall();
  json["steps"] = times.steps;
  return json;
}

std::string ledger_table(const StepTimes& times) {
  const double steps = static_cast<double>(std::max<std::size_t>(times.steps, 1));
  const double wall = std::max(times.wall(), 1e-12);
  std::string text = fmt::format("where a step's time went, mean of {} steps and all ranks:\n", times.steps);
  const auto row = [&](std::string_view name, double seconds) {
    text += fmt::format("  {:<26}{:>10.3f} ms {:>7.1f} %\n", spoken(name), 1e3 * seconds / steps, 100 * seconds / wall);
  };
  for (std::size_t part = 0; part < StepTimes::kParts; ++part) row(StepTimes::kNames[part], times.seconds[part]);
  row("step", times.wall());
  return text;
}

double RunResult::images_per_second() const {
  std::size_t images = 0;
  for (const EpochResult& epoch : epochs) images += epoch.images;
  return per_second(images, steps.wall());
}

nlohmann::json to_json(const EpochResult& e) {
  return {{"epoch", e.epoch},           {"steps", e.steps},
          {"train_loss", e.train_loss}, {"train_accuracy", e.train_accuracy},
          {"test_loss", e.test.loss},   {"test_accuracy", e.test.accuracy()},
          {"seconds", e.seconds},       {"images_per_second", per_second(e.images, e.seconds)}};
}

nlohmann::json to_json(const RunResult& r) {
  nlohmann::json json{{"status", r.status},
                      {"version", ANNULUS_VERSION},
                      {"ranks", r.ranks},
                      {"global_batch", r.global_batch},
                      {"device", r.device},
                      {"all_reduce", r.all_reduce},
                      {"train_images_per_second", r.images_per_second()},
                      {"ledger", ledger_json(r.steps)},
                      {"startup_seconds", r.startup_seconds},
                      {"evaluation_seconds", r.evaluation_seconds},
                      {"checkpoint_seconds", r.checkpoint_seconds},
                      {"total_seconds", r.total_seconds},
                      {"epochs", r.earlier_epochs}};
  for (const EpochResult& epoch : r.epochs) json["epochs"].push_back(to_json(epoch));
  if (!json["epochs"].empty()) {
    json["test_accuracy"] = json["epochs"].back()["test_accuracy"];
    json["test_loss"] = json["epochs"].back()["test_loss"];
  }
  return json;
}

std::string summary(const RunResult& r) {
  std::string text;
  if (!r.epochs.empty()) {
    const Evaluation& test = r.epochs.back().test;
    text += fmt::format("test accuracy {:.2f} %  ({} of {} images, loss {:.4f})\n", 100 * test.accuracy(), test.correct,
                        test.count, test.loss);
  }
  text += fmt::format("{:.0f} images/s on {} rank{}, global batch {}\n", r.images_per_second(), r.ranks,
                      r.ranks == 1 ? "" : "s", r.global_batch);
  text += ledger_table(r.steps);
  text += fmt::format("{:.1f} s in all: start-up {:.1f}, steps {:.1f}, evaluation {:.1f}, checkpoints {:.1f}\n",
                      r.total_seconds, r.startup_seconds, r.steps.wall(), r.evaluation_seconds, r.checkpoint_seconds);
  return text;
}

void write_json(const std::filesystem::path& file, const nlohmann::json& json) {
  const std::string text = json.dump(2) + '\n';
  write_atomically(file, std::as_bytes(std::span(text)));
}

}  // namespace annulus
