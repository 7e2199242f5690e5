#include "src/scaling/predict_scaling.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "kernels/base/error.h"
#include "src/io/sample_unit.h"
#include "src/metrics/results.h"
#include "src/scaling/fit_link.h"
#include "src/scaling/simulated_step.h"
#include "src/scaling/time_to_loss.h"

namespace annulus {
namespace {

// The link between nodes, and where it is known from.
struct KnownLink {
  LinkModel link;
  std::string source;
  std::optional<double> residual;
  std::size_t ranks = 0;  // ranks in the measurement
  bool one_node = false;  // measured on one node: unknown for more ranks
};

KnownLink network_of(const PredictScalingOptions& options) {
  if (options.fit.empty()) return {options.cluster.network, "--latency and --bandwidth", {}};
  const MeasuredLink measured = fit_link(options.fit);
  return {measured.fit.link, measured.source, measured.fit.residual, measured.ranks, measured.one_node};
}

constexpr const char* kEndOfOneNode =
    "on one node, which says nothing about a network between nodes: for more ranks measure all-reduces with one rank "
    "on "
    "each node, or give --latency and --bandwidth";

// Returns the rank counts to predict.
std::vector<std::size_t> rank_counts(const PredictScalingOptions& options, const KnownLink& network) {
  constexpr std::size_t kMost = 4096;
  if (options.ranks.empty()) {
    std::vector<std::size_t> counts;
    for (std::size_t ranks = 1; ranks <= (network.one_node ? network.ranks : kMost); ranks *= 2)
      counts.push_back(ranks);
    return counts;
  }
  if (const std::size_t most = std::ranges::max(options.ranks); network.one_node && most > network.ranks)
    fail("--ranks {}: {} ranks were measured {}", most, network.ranks, kEndOfOneNode);
  return options.ranks;
}

// Computing time is proportional to the batch; the update's does not depend on it, and the time for adding a shared
// embedding's rows only through the row count.
StepProfile with_batch(StepProfile profile, std::size_t batch) {
  const double times = static_cast<double>(batch) / static_cast<double>(profile.batch);
  profile.batch = batch;
  profile.input_seconds *= times;
  for (LayerProfile& layer : profile.layers) layer.scale(times);
  if (profile.embedding) profile.embedding->own_seconds *= times;
  return profile;
}

struct SpeedPrediction {
  std::size_t ranks, nodes, batch;
  SimulatedStep step;
  std::string sums;  // the all-reduce's name
  SampleUnit unit;

  std::size_t global_batch() const { return ranks * batch; }
  double speed() const { return unit.count(global_batch()) / step.step; }  // images or tokens per second
};

class Predictor {
 public:
  Predictor(const PredictScalingOptions& options, const StepProfile& profile, const LinkModel& network)
      : options_(options), profile_(profile), cluster_(options.cluster) {
    cluster_.network = network;
  }

  SpeedPrediction predict(std::size_t ranks) const {
    const AllReduceModel sum = model_all_reduce(options_.all_reduce, cluster_, ranks);
    const std::size_t nodes = (ranks + cluster_.ranks_per_node - 1) / cluster_.ranks_per_node;
    return {.ranks = ranks,
            .nodes = nodes,
            .batch = profile_.batch,
            .step = simulate_step(profile_, sum, options_.buckets, options_.interference),
            .sums = sum.name,
            .unit = SampleUnit(profile_.length)};
  }

 private:
  const PredictScalingOptions& options_;
  const StepProfile& profile_;
  Cluster cluster_;
};

double efficiency(const SpeedPrediction& prediction, const SpeedPrediction& baseline) {
  return prediction.speed() / (static_cast<double>(prediction.ranks) * baseline.speed());
}

void print_basis(const StepProfile& profile, const StepProfile& measured, const KnownLink& network,
                 const SpeedPrediction& largest) {
  fmt::print("{}, {} on each rank: profile of {} layers, {}, {} rank{}", profile.model, profile.batch_text(),
             measured.layers.size(), measured.batch_text(), measured.ranks, measured.ranks == 1 ? "" : "s");
  fmt::print("{}\n", profile.batch == measured.batch ? "" : "; computing is scaled with the batch");
  fmt::print("network: {:.1f} us, {:.4g} Gbit/s, {}", 1e6 * network.link.latency_seconds,
             8e-9 * network.link.bytes_per_second, network.source);
  fmt::print("{}\n",
             network.residual ? fmt::format(", off by {:.1f} % (root mean square)", 100 * *network.residual) : "");
  fmt::print("all-reduce of {} ranks, {} buckets: {}\n", largest.ranks, largest.step.buckets, largest.sums);
  if (profile.embedding)
    fmt::print(
        "at the end of a step: all-reduce of the embedding's rows of {:.0f} different tokens of {} ranks; text has "
        "fewer\n",
        profile.embedding->different_tokens(largest.global_batch() * profile.length), largest.ranks);
}

void print_table(const std::vector<SpeedPrediction>& predictions, const StepProfile& profile,
                 const SpeedPrediction& baseline, std::size_t measured_ranks) {
  fmt::print("{:>6} {:>6} {:>10} {:>12} {:>10} {:>11} {:>11} {:>11} {:>11} {:>11}\n", "ranks", "nodes", "batch/rank",
             "global batch", "step ms", "compute ms", "waiting ms", "exposed ms",
             fmt::format("{}/s", baseline.unit.name), "efficiency");
  for (const SpeedPrediction& p : predictions)
    fmt::print("{:>6} {:>6} {:>10} {:>12} {:>10.3f} {:>11.3f} {:>11.3f} {:>11.3f} {:>11.1f} {:>9.1f} %{}\n", p.ranks,
               p.nodes, p.batch, p.global_batch(), 1e3 * p.step.step, 1e3 * p.step.compute, 1e3 * p.step.waiting,
               1e3 * p.step.exposed, p.speed(), 100 * efficiency(p, baseline),
               p.ranks > measured_ranks ? "  extrapolated" : "");
  fmt::print("efficiency: {0}/s divided by ranks times the {1:.1f} {0}/s predicted for 1 rank at {2}\n",
             baseline.unit.name, baseline.speed(), profile.batch_text());
}

nlohmann::json to_json(const SpeedPrediction& p, const SpeedPrediction& baseline, std::size_t measured_ranks) {
  return {{"ranks", p.ranks},
          {"nodes", p.nodes},
          {"batch_per_rank", p.batch},
          {"global_batch", p.global_batch()},
          {"step_ms", 1e3 * p.step.step},
          {"compute_ms", 1e3 * p.step.compute},
          {"waiting_ms", 1e3 * p.step.waiting},
          {"exposed_ms", 1e3 * p.step.exposed},
          {"embedding_ms", 1e3 * p.step.embedding},
          {"communication_ms", 1e3 * p.step.communication},
          {p.unit.speed_name(), p.speed()},
          {"efficiency", efficiency(p, baseline)},
          {"extrapolated", p.ranks > measured_ranks}};
}

StepOfRanks step_of(const SpeedPrediction& p) {
  return {p.ranks, p.global_batch(), p.step.step};
}

// How much sooner more ranks reach the same loss than a single rank.
class LossPrediction {
 public:
  LossPrediction(const std::filesystem::path& results, const SpeedPrediction& baseline,
                 const std::vector<SpeedPrediction>& predictions)
      : source_(results.string()), noise_(read_noise(results)), baseline_(step_of(baseline)) {
    for (const SpeedPrediction& p : predictions) steps_.push_back(step_of(p));
    worth_ = ranks_worth(noise_, steps_);
  }

  void print() const {
    fmt::print("time to the same loss, for a gradient-noise scale of {:.4g} [{:.4g}, {:.4g}], of {}:\n", noise_.scale,
               noise_.low, noise_.high, source_);
    fmt::print("{:>6} {:>12} {:>11}\n", "ranks", "global batch", "faster");
    for (const StepOfRanks& step : steps_)
      fmt::print("{:>6} {:>12} {:>11}\n", step.ranks, step.global_batch, text(step));
    const auto worth = std::ranges::find(steps_, worth_, &StepOfRanks::ranks);
    fmt::print("{} rank{}: {} faster to the same loss; beyond them less than 5 % is gained\n", worth_,
               worth_ == 1 ? "" : "s", text(*worth));
  }

  void add_to(nlohmann::json& predictions) const {
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      const LossSpeedup found = loss_speedup(noise_, baseline_, steps_[i]);
      predictions[i].update(
          {{"loss_speedup", found.factor}, {"loss_speedup_low", found.low}, {"loss_speedup_high", found.high}});
    }
  }

  nlohmann::json json() const {
    return {{"scale", noise_.scale},
            {"low", noise_.low},
            {"high", noise_.high},
            {"source", source_},
            {"ranks_worth", worth_}};
  }

 private:
  std::string text(const StepOfRanks& step) const {
    const LossSpeedup found = loss_speedup(noise_, baseline_, step);
    return fmt::format("{:.2f}x [{:.2f}, {:.2f}]", found.factor, found.low, found.high);
  }

  std::string source_;
  MeasuredNoise noise_;
  StepOfRanks baseline_;
  std::vector<StepOfRanks> steps_;
  std::size_t worth_ = 0;
};

nlohmann::json to_json(const KnownLink& network) {
  nlohmann::json json{{"latency_us", 1e6 * network.link.latency_seconds},
                      {"bandwidth_gbit_s", 8e-9 * network.link.bytes_per_second},
                      {"source", network.source},
                      {"residual", nullptr}};
  if (network.residual) json["residual"] = *network.residual;
  return json;
}

}  // namespace

void predict_scaling(const PredictScalingOptions& options) {
  const StepProfile measured = read_profile(options.step);
  const StepProfile profile = with_batch(measured, options.batch > 0 ? options.batch : measured.batch);
  const KnownLink network = network_of(options);
  const Predictor predictor(options, profile, network.link);
  const SpeedPrediction baseline = predictor.predict(1);
  if (!(baseline.step.step > 0)) fail("{}: the profile's step takes no time", options.step.string());
  std::vector<SpeedPrediction> predictions;
  for (const std::size_t ranks : rank_counts(options, network)) predictions.push_back(predictor.predict(ranks));

  const std::size_t measured_ranks = std::max(measured.ranks, network.ranks);
  print_basis(profile, measured, network, std::ranges::max(predictions, {}, &SpeedPrediction::ranks));
  print_table(predictions, profile, baseline, measured_ranks);
  if (network.one_node)
    fmt::print("the prediction ends here: {} ranks were measured {}\n", network.ranks, kEndOfOneNode);
  std::optional<LossPrediction> to_loss;
  if (!options.noise.empty()) to_loss.emplace(options.noise, baseline, predictions);
  if (to_loss) to_loss->print();
  if (options.json.empty()) return;
  nlohmann::json rows;
  for (const SpeedPrediction& prediction : predictions) rows.push_back(to_json(prediction, baseline, measured_ranks));
  if (to_loss) to_loss->add_to(rows);
  nlohmann::json json{{"model", profile.model},
                      {"all_reduce", options.all_reduce},
                      {"link", to_json(network)},
                      {"baseline",
                       {{"ranks", 1},
                        {"batch_per_rank", baseline.batch},
                        {"step_ms", 1e3 * baseline.step.step},
                        {baseline.unit.speed_name(), baseline.speed()},
                        {"source", "predicted"}}},
                      {"predictions", rows}};
  if (to_loss) json["noise"] = to_loss->json();
  write_json(options.json, FileKind::scaling_prediction, json);
}

}  // namespace annulus
