#pragma once

#include <cstddef>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>

namespace annulus {

// Predicts how much sooner more ranks reach the same loss. With weak scaling more ranks have larger batches, which need
// fewer steps, but not in proportion:
//
//    steps(B) = S_min (1 + B_noise / B)
//
// where B_noise is the gradient-noise scale (src/step/gradient_noise.h; McCandlish et al. 2018, equation 2.7). This
// assumes that each batch is trained with the best learning rate for it.
struct MeasuredNoise {
  double scale = 0;          // samples
  double low = 0, high = 0;  // an interval; equal to the scale if there is none
};

// Reads the noise from a run's results.json. Throws Error if there is none.
MeasuredNoise read_noise(const std::filesystem::path& results);

// A step on some ranks.
struct StepOfRanks {
  std::size_t ranks, global_batch;
  double seconds;
};

// How much sooner the ranks of a step reach the same loss than the baseline's.
struct LossSpeedup {
  double factor, low, high;  // with the noise's interval
};
LossSpeedup loss_speedup(const MeasuredNoise& noise, const StepOfRanks& baseline, const StepOfRanks& step);

// Returns the smallest of these rank counts beyond which all larger counts together gain less than 5 % of the time.
// REQUIRES: at least one.
std::size_t ranks_worth(const MeasuredNoise& noise, std::span<const StepOfRanks> steps);

}  // namespace annulus
