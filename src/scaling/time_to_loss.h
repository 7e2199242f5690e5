#pragma once

#include <cstddef>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>

namespace annulus {

// Predicts how much sooner more ranks reach the same loss. With weak scaling they have larger batches, which need fewer
// steps, but not in proportion:
//
//    steps(B) = S_min (1 + B_noise / B)
//
// where B_noise is the gradient-noise scale (src/step/gradient_noise.h; McCandlish et al. 2018, equation 2.7). It
// assumes that each batch is trained with its best learning rate.
struct MeasuredNoise {
  double scale = 0;          // samples
  double low = 0, high = 0;  // its interval; equal to the scale if it has none
};

// Reads the noise from a run's results.json. Throws Error if there is none.
MeasuredNoise read_noise(const std::filesystem::path& results);

// A step of a number of ranks.
struct StepOfRanks {
  std::size_t ranks, global_batch;
  double seconds;
};

// How much sooner than another number of ranks it reaches the same loss.
struct LossSpeedup {
  double factor, low, high;  // with the noise's interval
};
LossSpeedup loss_speedup(const MeasuredNoise& noise, const StepOfRanks& baseline, const StepOfRanks& step);

// Returns the smallest of these numbers of ranks beyond which all others together gain less than 5 % of the time.
// REQUIRES: at least one.
std::size_t ranks_worth(const MeasuredNoise& noise, std::span<const StepOfRanks> steps);

}  // namespace annulus
