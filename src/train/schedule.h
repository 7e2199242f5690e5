#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace annulus {

// The learning-rate options.
struct ScheduleOptions {
  double rate = 0.05;
  std::size_t reference_batch = 0;      // global batch for which `rate` is given; 0: no scaling
  double warmup = 0;                    // epochs
  std::optional<double> warmup_from{};  // fraction of the rate; not set: see Schedule
  std::string kind = "constant";
  std::vector<double> steps{};  // epochs, for "step"
  double factor = 0.1;          // for "step" and "plateau"
  double end = 0;               // final or lowest rate, for all but "constant" and "step"
  double power = 2;             // for "polynomial"
  double cycle = 0;             // epochs, for "cyclic"
  std::size_t patience = 10;    // evaluations, for "plateau"
};

// Throws Error if options contradict each other or do not fit the number of epochs.
void check(const ScheduleOptions& options, std::size_t epochs);

// The learning rate as a function of progress in epochs and, for "plateau", of evaluations: it is
// the same on any number of ranks and in a resumed run.
//
// With a reference batch the rate is scaled linearly, by global batch / reference (Goyal et al., "Accurate, large
// minibatch SGD: training ImageNet in 1 hour", 2017, section 2.1). It warms up linearly (section 2.2) from
// `warmup_from` times the scaled rate; the default is to begin at the unscaled rate, or at 0 without a reference batch.
// Afterwards:
//   constant    it does not change;
//   step        it is multiplied by `factor` after each of these epochs;
//   cosine      it falls to `end` along half a cosine (Loshchilov and Hutter, "SGDR", ICLR 2017, equation 5);
//   polynomial  it falls to `end` as (1 - x)^power (You, Gitman, Ginsburg, 2017, have power 2);
//   one-cycle   it falls as with cosine, and the warm-up, too, follows half a cosine (Smith and Topin,
//               "Super-convergence", 2018, as PyTorch's OneCycleLR; the momentum is not varied); by default the warm-up
//               takes 30 % of the epochs and begins at 1/25 of the rate;
//   cyclic      it rises linearly from `end` and falls back to it in every `cycle` (Smith, "Cyclical learning rates for
//               training neural networks", 2017, "triangular");
//   plateau     it is multiplied by `factor`, but not below `end`, whenever more than `patience` evaluations, since the
//               best one or the last reduction, have not been the best so far.
// Cosine, polynomial and one-cycle extend from the end of the warm-up to the end of the last epoch.
class Schedule {
 public:
  Schedule(const ScheduleOptions& options, std::size_t global_batch, std::size_t epochs);

  // `epoch`: 0 is the beginning of the first. `reductions`: see reduces().
  float rate(double epoch, std::uint64_t reductions = 0) const;

  // Whether the rate is reduced after an evaluation, the given number of evaluations after the best one.
  bool reduces(std::uint64_t evaluations_since_best) const;

  // "0.1 x 1024/256 = 0.4, warm-up 5 epochs from 0.1, then x 0.1 after epochs 30, 60, 80"
  std::string description() const;

 private:
  double warmed_up(double epoch) const;
  double decayed(double epoch, std::uint64_t reductions) const;

  ScheduleOptions options_;
  std::size_t global_batch_, epochs_;
  double peak_;   // rate after the warm-up
  double first_;  // rate at the beginning of the warm-up
};

}  // namespace annulus
