#include "src/bucket_tuner.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <ranges>

#include "kernels/median.h"
#include "src/bytes.h"
#include "src/options.h"

namespace annulus {
namespace {

constexpr std::size_t kSmallest = 256 * 1024;
constexpr std::size_t kFactor = 4;
constexpr std::size_t kFewestRounds = 2, kMostRounds = 15;
constexpr double kEnoughSeconds = 3;
constexpr double kWorthChanging = 0.98;  // of the default's time

// Those that cut this model's gradients differently, the last one not at all.
std::vector<std::size_t> sizes_to_try(Trainer& trainer) {
  std::vector<std::size_t> sizes;
  std::size_t before = 0;
  for (std::size_t bytes = kSmallest; before != 1; bytes *= kFactor) {
    trainer.cut_buckets(bytes);
    if (trainer.buckets() != before) sizes.push_back(std::min(bytes, trainer.gradient_bytes()));
    before = trainer.buckets();
  }
  return sizes;
}

std::size_t best_of(const std::vector<BucketTrial>& trials) {
  const BucketTrial best = *std::ranges::min_element(trials, {}, &BucketTrial::seconds);
  const auto usual = std::ranges::find(trials, kBucketBytes, &BucketTrial::bytes);
  return usual != trials.end() && best.seconds > kWorthChanging * usual->seconds ? usual->bytes : best.bytes;
}

}  // namespace

BucketTuning tune_buckets(const World& world, Trainer& trainer, const Batch& batch) {
  const std::vector<std::size_t> sizes = sizes_to_try(trainer);
  if (world.size() == 1 || !trainer.sums() || sizes.size() == 1) {
    trainer.cut_buckets(kBucketBytes);
    return {kBucketBytes, {}};
  }
  std::vector<std::vector<double>> seconds(sizes.size());
  double spent = 0;
  for (std::size_t round = 0; round < kMostRounds && (round < kFewestRounds || spent < kEnoughSeconds); ++round)
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      trainer.cut_buckets(sizes[i]);
      if (round == 0) trainer.rehearse(batch);  // memory is made, connections are opened
      world.barrier();
      double step = trainer.rehearse(batch);
      world.maximum({&step, 1});  // so that all ranks decide alike
      seconds[i].push_back(step);
      spent += step;
    }
  std::vector<BucketTrial> trials;
  for (std::size_t i = 0; i < sizes.size(); ++i) trials.push_back({sizes[i], median(seconds[i])});
  const std::size_t chosen = best_of(trials);
  trainer.cut_buckets(chosen);
  return {chosen, trials};
}

std::string to_string(const BucketTuning& tuning) {
  const auto text = [](const BucketTrial& trial) {
    return fmt::format("{} {:.2f} ms", format_bytes(trial.bytes), 1e3 * trial.seconds);
  };
  if (tuning.trials.empty()) return format_bytes(tuning.chosen_bytes);
  return fmt::format("{} (of {})", format_bytes(tuning.chosen_bytes),
                     fmt::join(tuning.trials | std::views::transform(text), ", "));
}

}  // namespace annulus
