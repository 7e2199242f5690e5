#include "src/metrics/results.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "kernels/base/error.h"
#include "src/io/atomic_file.h"
#include "src/io/file_io.h"
#include "src/io/json.h"
#include "src/io/printable.h"
#include "src/io/standard_output.h"
#include "src/io/terminal.h"
#include "src/io/version.h"
#include "src/metrics/slow_down.h"

namespace annulus {
namespace {

constexpr std::size_t kMostJsonBytes = std::size_t{1} << 30;
constexpr double kJoulesPerKilowattHour = 3.6e6;

double per_second(std::size_t count, double seconds) {
  return seconds > 0 ? static_cast<double>(count) / seconds : 0;
}

double joules_per_step(const Energy& energy, const StepTimes& mean) {
  return energy.watts * mean.wall() / static_cast<double>(std::max<std::size_t>(mean.steps, 1));
}

std::string spoken(std::string_view name) {
  std::string text(name);
  std::ranges::replace(text, '_', ' ');
  return text;
}

void add_evaluation(nlohmann::json& json, const Evaluation& e) {
  for (const Measure measure : kMeasures)
    if (const auto value = e.score.value(measure)) json[e.split + "_" + to_string(measure)] = *value;
  json[e.split + "_skipped"] = e.skipped;
}

std::string bold(const std::string& text) {
  return emphasized(stdout, Emphasis::headline, text);
}

// "test accuracy 91.65 %  (9165 of 10000 images, top-5 99.90 %, loss 0.2434)"
std::string score_line(const Evaluation& e) {
  return fmt::format("{}  ({})", bold(e.split + " " + headline(e.score)), details(e.score));
}

nlohmann::json start_up_json(const StartUp& start_up) {
  nlohmann::json json;
  for (std::size_t part = 0; part < StartUp::kParts; ++part)
    json[std::string(StartUp::kNames[part])] = start_up.seconds()[part];
  return json;
}

// The rank with the largest `seconds_of`.
struct Worst {
  std::size_t rank;
  double seconds;
};
template <class SecondsOf>
Worst worst_rank(const Accounts& accounts, SecondsOf seconds_of) {
  const auto worst = std::ranges::max_element(accounts.ranks, {}, seconds_of);
  return {accounts.ranks_in_job[static_cast<std::size_t>(worst - accounts.ranks.begin())], seconds_of(*worst)};
}

}  // namespace

nlohmann::json ledger_json(const Accounts& accounts) {
  const StepTimes mean = accounts.mean();
  nlohmann::json json{{"wall", mean.wall()}, {"steps", mean.steps}};
  if (const auto staleness = accounts.mean_staleness())
    json["staleness"] = {{"mean", *staleness}, {"histogram", accounts.staleness}};
  nlohmann::json& ranks = json["ranks"];
  for (std::size_t part = 0; part < StepTimes::kParts; ++part) {
    const std::string name(StepTimes::kNames[part]);
    json[name] = mean.seconds[part];
    if (accounts.ranks.empty()) continue;  // a run that was complete when it was resumed
    const Worst worst = worst_rank(accounts, [&](const StepTimes& rank) { return rank.seconds[part]; });
    json["worst"][name] = {{"rank", worst.rank}, {"seconds", worst.seconds}};
    for (const StepTimes& rank : accounts.ranks) ranks[name].push_back(rank.seconds[part]);
  }
  for (const StepTimes& rank : accounts.ranks) ranks["wall"].push_back(rank.wall());
  for (const Arrival& arrival : accounts.arrivals) {
    ranks["behind_first"].push_back(arrival.behind_first);
    ranks["last"].push_back(arrival.last);
  }
  if (accounts.arrivals.size() < 2) return json;
  const Lateness late = accounts.latest();
  json["latest"] = {{"rank", late.rank}, {"seconds_a_step", late.seconds}, {"share", late.share}, {"last", late.last}};
  return json;
}

nlohmann::json ledger_json(const Accounts& accounts, const Energy& energy) {
  nlohmann::json json = ledger_json(accounts);
  if (!energy.unknown.empty()) return json;
  const StepTimes mean = accounts.mean();
  for (std::size_t part = 0; part < StepTimes::kParts; ++part)
    json["joules"][std::string(StepTimes::kNames[part])] = energy.watts * mean.seconds[part];
  return json;
}

nlohmann::json to_json(const GpuMemoryUse& use) {
  return {{"weights", use.weights},         {"gradients", use.gradients},   {"states", use.states},
          {"activations", use.activations}, {"workspaces", use.workspaces}, {"in_use", use.in_use}};
}

nlohmann::json energy_json(const Energy& energy, const StepTimes& mean) {
  if (!energy.unknown.empty()) return "unknown";
  return {{"source", energy.source},
          {"watts", energy.watts},
          {"joules_per_step", joules_per_step(energy, mean)},
          {"kilowatt_hours", energy.joules / kJoulesPerKilowattHour}};
}

std::string energy_line(const Energy& energy, const StepTimes& mean) {
  if (!energy.unknown.empty()) return "energy: unknown, because " + energy.unknown;
  return fmt::format("energy of {}: {:.4g} J a step, {:.3g} kWh in all ({})", energy.of, joules_per_step(energy, mean),
                     energy.joules / kJoulesPerKilowattHour, energy.source);
}

std::string ledger_table(const Accounts& accounts, const Energy& energy) {
  const StepTimes mean = accounts.mean();
  const double steps = static_cast<double>(std::max<std::size_t>(mean.steps, 1));
  const double wall = std::max(mean.wall(), 1e-12);
  std::string text = fmt::format("where a step's time went, mean of {} steps and all ranks:\n", mean.steps);
  const auto row = [&](std::string_view name, auto seconds_of) {
    const double seconds = seconds_of(mean);
    text += fmt::format("  {:<26}{:>10.3f} ms {:>7.1f} %", spoken(name), 1e3 * seconds / steps, 100 * seconds / wall);
    if (energy.unknown.empty()) text += fmt::format(" {:>9.4g} J", energy.watts * seconds / steps);
    if (accounts.ranks.size() > 1) {
      const Worst worst = worst_rank(accounts, seconds_of);
      text += fmt::format("   most: {:>10.3f} ms on rank {}", 1e3 * worst.seconds / steps, worst.rank);
    }
    text += '\n';
  };
  for (std::size_t part = 0; part < StepTimes::kParts; ++part)
    row(StepTimes::kNames[part], [&](const StepTimes& rank) { return rank.seconds[part]; });
  row("step", [](const StepTimes& rank) { return rank.wall(); });
  if (const auto staleness = accounts.mean_staleness())
    text += fmt::format("  gradients are {:.2f} steps old, at most {}\n", *staleness, accounts.staleness.size() - 1);
  return text;
}

std::string lateness_line(const Accounts& accounts) {
  if (accounts.arrivals.size() < 2) return "";
  const Lateness late = accounts.latest();
  const std::size_t steps = accounts.mean().steps;
  return fmt::format(
      "rank {} is the latest: its gradients are ready {:.3f} ms a step after the median rank's ({:.1f} % of the step), "
      "last of all in {} of {} steps",
      late.rank, 1e3 * late.seconds, 100 * late.share, late.last, steps);
}

std::size_t RunResult::samples() const {
  std::size_t images = 0;
  for (const EpochResult& epoch : epochs) images += epoch.images;
  return images;
}

double RunResult::items_per_second() const {
  return per_second(samples() * unit.each, accounts.mean().wall());
}

std::optional<double> RunResult::mfu() const {
  return utilization.share(samples(), accounts.mean().wall());
}

nlohmann::json to_json(const Score& score) {
  nlohmann::json json{{"count", score.count}};
  if (const auto& correct = score[Measure::accuracy]) json["correct"] = static_cast<std::uint64_t>(*correct);
  for (const Measure measure : kMeasures)
    if (const auto value = score.value(measure)) json[to_string(measure)] = *value;
  return json;
}

nlohmann::json to_json(const EpochResult& e, const SampleUnit& unit, const Utilization& utilization) {
  nlohmann::json json{{"epoch", e.epoch},
                      {"first_image", e.first_image},
                      {"steps", e.steps},
                      {"train_loss", e.train_loss},
                      {"train_" + to_string(e.measure), e.train_measure},
                      {"learning_rate", e.rate},
                      {"skipped", e.skipped},
                      {"seconds", e.seconds},
                      {unit.speed_name(), per_second(e.images * unit.each, e.seconds)},
                      {"ledger", ledger_json(e.accounts)}};
  if (const auto mfu = utilization.share(e.images, e.seconds)) json["mfu"] = *mfu;
  if (e.evaluation) add_evaluation(json, *e.evaluation);
  if (e.gradient_norms)
    json["gradient_norm"] = {{"mean", e.gradient_norms->mean()}, {"largest", e.gradient_norms->largest}};
  return json;
}

nlohmann::json to_json(const EvaluationResult& e) {
  nlohmann::json json{
      {"step", e.step}, {"epoch", e.epoch}, {"seconds", e.seconds}, {"images", e.evaluation.score.count}};
  add_evaluation(json, e.evaluation);
  return json;
}

nlohmann::json to_json(const NoiseScale& noise) {
  nlohmann::json json{
      {"scale", noise.scale}, {"steps", noise.steps}, {"squared_gradient", noise.gradient}, {"noise", noise.noise}};
  if (noise.low && noise.high) json.update({{"low", *noise.low}, {"high", *noise.high}});
  return json;
}

nlohmann::json to_json(const LostRank& loss) {
  return {{"rank", loss.rank},       {"host", loss.host},
          {"step", loss.step},       {"repeated_steps", loss.repeated_steps},
          {"seconds", loss.seconds}, {"excluded", loss.excluded}};
}

nlohmann::json to_json(const FlippedBits& flips) {
  return {{"found_after_step", flips.found_after},
          {"repeated_steps", flips.repeated_steps},
          {"ranks", flips.ranks},
          {"finding", flips.finding}};
}

nlohmann::json to_json(const PipelineResult& pipeline) {
  return {{"stages", pipeline.cuts.size() + 1},
          {"cuts", pipeline.cuts},
          {"stage_milliseconds", pipeline.milliseconds},
          {"bound", pipeline.bound}};
}

nlohmann::json to_json(const RunResult& r) {
  nlohmann::json json{{"status", r.status},
                      {"began", r.began},
                      {"version", ANNULUS_VERSION},
                      {"commit", commit()},
                      {"ranks", r.ranks},
                      {"global_batch", r.global_batch},
                      {"learning_rate", r.schedule},
                      {"device", r.device},
                      {"deterministic", r.deterministic},
                      {"all_reduce", r.all_reduce},
                      {"buckets", r.buckets},
                      {"peak_memory_bytes", r.peak_memory_bytes},
                      {"energy", energy_json(r.energy, r.accounts.mean())},
                      {"train_" + r.unit.speed_name(), r.items_per_second()},
                      {"ledger", ledger_json(r.accounts, r.energy)},
                      {"startup_seconds", r.start_up.total()},
                      {"startup", start_up_json(r.start_up)},
                      {"evaluation_seconds", r.evaluation_seconds},
                      {"checkpoint_seconds", r.checkpoint_seconds},
                      {"checkpoint_write_seconds", r.checkpoint_write_seconds},
                      {"total_seconds", r.total_seconds},
                      {"earlier_seconds", r.earlier_seconds},
                      {"epochs", r.earlier_epochs},
                      {"evaluations", r.earlier_evaluations},
                      {"data_changes", r.data_changes}};
  if (r.servers > 0) json["servers"] = r.servers;
  if (r.gpu_memory) json["gpu_memory_bytes"] = to_json(*r.gpu_memory);
  if (r.pipeline) json["pipeline"] = to_json(*r.pipeline);
  for (const LostRank& loss : r.losses) json["losses"].push_back(to_json(loss));
  for (const FlippedBits& flips : r.flips) json["flips"].push_back(to_json(flips));
  for (const EpochResult& epoch : r.epochs) json["epochs"].push_back(to_json(epoch, r.unit, r.utilization));
  if (const auto mfu = r.mfu()) {
    json["train_mfu"] = *mfu;
    json["peak_flops_per_second"] = *r.utilization.peak_flops_per_second;
  }
  for (const EvaluationResult& evaluation : r.evaluations) json["evaluations"].push_back(to_json(evaluation));
  if (r.gradient_noise) json["gradient_noise"] = to_json(*r.gradient_noise);
  if (const auto slow_down = find_slow_down(r.epochs))
    json["slow_down"] = {{"reference_epoch", slow_down->reference},
                         {"epochs", slow_down->epochs},
                         {"share", slow_down->share},
                         {"part", StepTimes::kNames[slow_down->part]},
                         {"part_before_seconds", slow_down->part_before_seconds},
                         {"part_after_seconds", slow_down->part_after_seconds}};
  if (!json["evaluations"].empty()) {
    const nlohmann::json& last = json["evaluations"].back();
    for (const char* split : {"validation", "test"})
      for (const std::string& measure : measure_names())
        if (const std::string name = fmt::format("{}_{}", split, measure); last.contains(name)) json[name] = last[name];
  }
  if (!r.ended_by.empty()) json["ended_by"] = r.ended_by;
  if (r.test) {
    add_evaluation(json, r.test->evaluation);
    json["test_step"] = r.test->step;
    json["test_seconds"] = r.test->seconds;
  }
  return json;
}

std::string outcome(const RunResult& r) {
  if (r.test) return fmt::format("{}, with the best weights, of step {}", score_line(r.test->evaluation), r.test->step);
  if (!r.evaluations.empty()) return score_line(r.evaluations.back().evaluation);
  return bold(fmt::format("train loss {:.4f}", r.epochs.empty() ? 0 : r.epochs.back().train_loss));
}

std::string summary(const RunResult& r) {
  std::string text;
  if (r.test && !r.evaluations.empty()) text += score_line(r.evaluations.back().evaluation) + '\n';
  std::size_t skipped = 0;
  for (const EpochResult& epoch : r.epochs) skipped += epoch.skipped;
  for (const EvaluationResult& evaluation : r.evaluations) skipped += evaluation.evaluation.skipped;
  if (skipped > 0) text += fmt::format("bad samples were skipped {} times\n", skipped);
  if (r.epochs.empty()) return text;  // only an evaluation was left to do
  text +=
      fmt::format("{} on {} rank{}{}, global batch {}\n",
                  bold(fmt::format("{:.0f} {}/s", r.items_per_second(), r.unit.name)), r.ranks, r.ranks == 1 ? "" : "s",
                  r.servers > 0 ? fmt::format(" ({} only serve)", r.servers) : "", r.global_batch);
  if (const auto mfu = r.mfu())
    text += fmt::format("MFU (model FLOPs utilization) {:.1f} % of {}\n", 100 * *mfu, r.utilization.peak_text());
  for (const LostRank& loss : r.losses)
    text += fmt::format("rank {} on {} {}: {:.2f} s until the others went on after step {}, {} step{} repeated\n",
                        loss.rank, printable(loss.host), loss.fate(), loss.seconds, loss.step, loss.repeated_steps,
                        loss.repeated_steps == 1 ? "" : "s");
  text += ledger_table(r.accounts, r.energy);
  if (r.gpu_memory) text += to_string(*r.gpu_memory) + '\n';
  if (r.gpu_memory || r.energy.unknown.empty()) text += energy_line(r.energy, r.accounts.mean()) + '\n';
  if (const std::string late = lateness_line(r.accounts); !late.empty()) text += "  " + late + '\n';
  if (const auto slow_down = find_slow_down(r.epochs)) text += slow_down->line() + '\n';
  text += fmt::format("{:.1f} s in all: start-up {:.1f}, steps {:.1f}, evaluation {:.1f}, checkpoints {:.1f}\n",
                      r.total_seconds, r.start_up.total(), r.accounts.mean().wall(), r.evaluation_seconds,
                      r.checkpoint_seconds);
  text += fmt::format("start-up: {}\n", to_string(r.start_up));
  if (r.earlier_seconds > 0)
    text += fmt::format("{:.1f} s with the earlier parts of the run\n", r.earlier_seconds + r.total_seconds);
  return text;
}

void read_earlier_results(const std::filesystem::path& file, std::uint64_t epoch, std::uint64_t step,
                          RunResult& result) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(file, error)) return;  // a pipe would block
  std::ifstream stream(file);
  const auto earlier = try_parse_json(stream);
  if (!earlier.is_object()) return;
  const auto take = [&](const char* list, const char* number, std::uint64_t last, auto& results) {
    for (const auto& entry : member_or(earlier, list, nlohmann::json::array()))
      if (entry.is_object() && member_or(entry, number, std::uint64_t{0}) <= last) results.push_back(entry);
  };
  result.began = member_or(earlier, "began", result.began);
  take("epochs", "epoch", epoch, result.earlier_epochs);
  take("evaluations", "step", step, result.earlier_evaluations);
  take("data_changes", "step", step, result.data_changes);
}

nlohmann::json read_json(const std::filesystem::path& file) {
  std::vector<std::uint8_t> bytes;
  read_file(file, kMostJsonBytes, bytes);
  nlohmann::json json = try_parse_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  if (!json.is_object()) fail("{} is not a JSON object, or is damaged", file.string());
  return json;
}

void write_json(const std::filesystem::path& file, FileKind kind, nlohmann::json json) {
  json["kind"] = name(kind);
  const std::string text = json.dump(2) + '\n';
  if (file == kStandardOutput) return write_report(text);
  write_atomically(file, std::as_bytes(std::span(text)));
}

}  // namespace annulus
