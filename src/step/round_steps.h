#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "src/data/sampler.h"

namespace annulus {

// The steps of a round of the async strategy. Every step has one update, to which a rank contributes the gradients of
// those of its parts that are due in this step.
//
// In a round in steps every rank has one part in each step, as in a synchronous run. In a timed round ranks have as
// many parts as their speeds allow, spread evenly over the steps. For example, 4 steps, in which one rank takes two
// steps for each of its parts, and another has two parts due in every second step:
//
//    step             0     1     2     3
//    rank of 4 parts  0     1     2     3
//    rank of 2 parts  0 ----      1 ----      part 1 begins in step 2 and is due in step 3
//    rank of 6 parts  0     1,2   3     4,5
class RoundSteps {
 public:
  // A part of a rank's share: the step in which it begins, and the one in which it is due.
  struct Part {
    std::size_t first, due;
  };

  // `ranks`: the computing ranks. `part_size`: the samples of a part in timed rounds. `steps`: their number, and at
  // most the parts of some rank; so there are samples in every step.
  RoundSteps(const StepPlan& round, std::size_t ranks, std::size_t part_size, std::size_t steps);

  std::size_t size() const { return samples_.size(); }
  std::size_t samples(std::size_t step) const { return samples_[step]; }  // of all ranks
  // None if the rank only serves.
  std::span<const Part> parts(std::size_t rank) const {
    return rank < parts_.size() ? std::span<const Part>(parts_[rank]) : std::span<const Part>();
  }
  bool contributes(std::size_t rank, std::size_t step) const;  // whether any of the rank's parts is due in this step

 private:
  void add_steps(const StepPlan& round, std::size_t ranks);
  void spread(std::vector<Part>& parts, std::size_t samples, std::size_t part_size);

  std::vector<std::size_t> samples_;      // of each step
  std::vector<std::vector<Part>> parts_;  // of each rank
};

}  // namespace annulus
