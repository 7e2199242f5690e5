#include "src/step/bucket_tuner.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "kernels/base/median.h"
#include "src/io/bytes.h"

namespace annulus {
namespace {

constexpr std::size_t kFactor = 4;
constexpr std::array kDeferred = {0.0, 0.25, 0.5};
constexpr std::size_t kFewestRounds = 2, kMostRounds = 15;
constexpr double kEnoughSeconds = 5;
constexpr double kWorthChanging = 0.98;  // of the default's time

// Returns the options that cut this model's gradients differently, up to the size at which one bucket holds them all.
std::vector<BucketOptions> worth_trying(Trainer& trainer, const BucketOptions& defaults) {
  std::vector<BucketOptions> all;
  std::size_t buckets_before = 0;
  for (std::size_t bytes = defaults.bytes / kFactor; buckets_before != 1;
       bytes = bytes < defaults.bytes ? defaults.bytes : bytes * kFactor) {
    trainer.cut_buckets({bytes, 0});
    if (trainer.buckets().size() == buckets_before) continue;
    buckets_before = trainer.buckets().size();
    std::size_t deferred_before = 0;
    for (const double share : kDeferred) {
      if (share > 0 && !trainer.may_defer()) break;
      trainer.cut_buckets({bytes, share});
      const std::size_t deferred = trainer.buckets().deferred().size();
      if (share > 0 && deferred == deferred_before) continue;
      deferred_before = deferred;
      all.push_back({bytes, share});
    }
  }
  return all;
}

BucketOptions best_of(const std::vector<BucketTrial>& trials, const BucketOptions& defaults) {
  const BucketTrial best = *std::ranges::min_element(trials, {}, &BucketTrial::seconds);
  const auto trial = std::ranges::find(trials, defaults, &BucketTrial::buckets);
  return trial != trials.end() && best.seconds > kWorthChanging * trial->seconds ? defaults : best.buckets;
}

}  // namespace

BucketTuning tune_buckets(const World& world, Trainer& trainer, const Batch& batch) {
  trainer.cut_buckets({});
  const BucketOptions defaults = trainer.bucket_options();
  const std::vector<BucketOptions> options = worth_trying(trainer, defaults);
  if (world.size() == 1 || !trainer.reduces() || options.size() == 1) {
    trainer.cut_buckets(defaults);
    return {defaults, {}};
  }
  std::vector<std::vector<double>> seconds(options.size());
  double spent = 0;
  for (std::size_t round = 0; round < kMostRounds && (round < kFewestRounds || spent < kEnoughSeconds); ++round)
    for (std::size_t i = 0; i < options.size(); ++i) {
      trainer.cut_buckets(options[i]);
      if (round == 0) trainer.rehearse(batch);  // allocates memory and opens connections
      world.barrier();
      double step = trainer.rehearse(batch);
      world.maximum({&step, 1});  // so that all ranks decide the same
      seconds[i].push_back(step);
      spent += step;
    }
  BucketTuning tuning;
  for (std::size_t i = 0; i < options.size(); ++i) tuning.trials.push_back({options[i], median(seconds[i])});
  tuning.chosen = best_of(tuning.trials, defaults);
  trainer.cut_buckets(tuning.chosen);
  return tuning;
}

std::string to_string(const BucketOptions& buckets) {
  return format_bytes(buckets.bytes) +
         (buckets.deferred > 0 ? fmt::format(", {:.0f} % deferred", 100 * buckets.deferred) : "");
}

std::string to_string(const BucketTuning& tuning) {
  std::string text = to_string(tuning.chosen);
  if (tuning.trials.empty()) return text;
  const auto [best, worst] = std::ranges::minmax_element(tuning.trials, {}, &BucketTrial::seconds);
  return text + fmt::format(" (of {} tried, {:.2f} to {:.2f} ms a step)", tuning.trials.size(), 1e3 * best->seconds,
                            1e3 * worst->seconds);
}

}  // namespace annulus
