#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace annulus {

// What the command line says of the learning rate.
struct ScheduleOptions {
  double rate = 0.05;
  std::size_t reference_batch = 0;      // that `rate` is for; 0: whatever the global batch is
  double warmup = 0;                    // epochs
  std::optional<double> warmup_from{};  // share of the rate; not set: see Schedule
  std::string kind = "constant";
  std::vector<double> steps{};  // epochs, for "step"
  double factor = 0.1;          // likewise
  double end = 0;               // rate, for "cosine" and "polynomial"
  double power = 2;             // for "polynomial"
};

// Throws Error where options contradict each other, or ask for what a schedule of so many epochs cannot do.
void check(const ScheduleOptions& options, std::size_t epochs);

// The learning rate as a function of how far the training is, in epochs, and of nothing else: any number of ranks, and
// a run that is resumed, find the same rates.
//
// With a reference batch the rate is scaled linearly: times global batch / reference (Goyal et al., "Accurate, large
// minibatch SGD: training ImageNet in 1 hour", 2017, section 2.1). It warms up linearly (section 2.2): from
// `warmup_from` times what it becomes, by default from the rate that is not scaled up, and without a reference from 0.
// Afterwards:
//   constant    it stays;
//   step        it is multiplied by `factor` after each of these epochs;
//   cosine      it falls to `end` along half a cosine (Loshchilov and Hutter, "SGDR", ICLR 2017, equation 5);
//   polynomial  it falls to `end` as (1 - x)^power (You, Gitman, Ginsburg, 2017, have power 2),
// the latter two from the warm-up's end to the last epoch's.
class Schedule {
 public:
  Schedule(const ScheduleOptions& options, std::size_t global_batch, std::size_t epochs);

  float rate(double epoch) const;  // 0 is the beginning of the first one

  // "0.1 x 1024/256 = 0.4, warm-up 5 epochs from 0.1, then x 0.1 after epochs 30, 60, 80"
  std::string description() const;

 private:
  double decayed(double epoch) const;

  ScheduleOptions options_;
  std::size_t global_batch_, epochs_;
  double peak_;   // the rate after the warm-up
  double first_;  // and at its beginning
};

}  // namespace annulus
