#include "src/step/round_steps.h"

#include <catch2/catch.hpp>

namespace annulus {
namespace {

std::vector<std::size_t> dues(const RoundSteps& steps, std::size_t rank) {
  std::vector<std::size_t> all;
  for (const RoundSteps::Part& part : steps.parts(rank)) all.push_back(part.due);
  return all;
}

std::vector<std::size_t> firsts(const RoundSteps& steps, std::size_t rank) {
  std::vector<std::size_t> all;
  for (const RoundSteps::Part& part : steps.parts(rank)) all.push_back(part.first);
  return all;
}

using StepNumbers = std::vector<std::size_t>;

}  // namespace

TEST_CASE("in a round in steps every rank has a part in each step that has samples for it", "[round_steps]") {
  const StepPlan round{0, {100, 122}, false, {}, 10};  // the last step has 2 samples for 3 ranks
  const RoundSteps steps(round, 3, 4, 3);
  CHECK(steps.size() == 3);
  for (const std::size_t rank : {0u, 1u}) {
    CHECK(firsts(steps, rank) == StepNumbers{0, 1, 2});
    CHECK(dues(steps, rank) == StepNumbers{0, 1, 2});
  }
  CHECK(dues(steps, 2) == StepNumbers{0, 1});
  CHECK(steps.contributes(2, 1));
  CHECK_FALSE(steps.contributes(2, 2));
  CHECK(steps.parts(3).empty());  // a rank that only serves
  CHECK(steps.samples(0) == 10);
  CHECK(steps.samples(2) == 2);
}

TEST_CASE("in a timed round parts are spread evenly over the steps", "[round_steps]") {
  const StepPlan round{0, {0, 36}, false, {4, 2, 6}, 0};
  const RoundSteps steps(round, 3, 3, 4);
  CHECK(dues(steps, 0) == StepNumbers{0, 1, 2, 3});
  CHECK(firsts(steps, 1) == StepNumbers{0, 2});
  CHECK(dues(steps, 1) == StepNumbers{1, 3});
  CHECK(dues(steps, 2) == StepNumbers{0, 1, 1, 2, 3, 3});
  CHECK_FALSE(steps.contributes(1, 0));
  CHECK(steps.contributes(1, 1));
  CHECK(steps.samples(0) == 6);
  CHECK(steps.samples(1) == 12);
  CHECK(steps.samples(2) == 6);
  CHECK(steps.samples(3) == 12);
}

TEST_CASE("every sample of a timed round is in one step, and every step has some", "[round_steps]") {
  constexpr std::size_t kPart = 5;
  for (const std::vector<std::size_t>& weights :
       {StepNumbers{1, 1, 1}, StepNumbers{9, 1, 4}, StepNumbers{1, 30, 1}, StepNumbers{7, 7, 6}})
    for (std::size_t size = 1; size <= kPart * (weights[0] + weights[1] + weights[2]); ++size) {
      const RoundSteps steps({0, {0, size}, false, weights, 0}, 3, kPart, (size + 3 * kPart) / (3 * kPart + 1));
      std::size_t sum = 0;
      for (std::size_t step = 0; step < steps.size(); ++step) {
        CHECK(steps.samples(step) > 0);
        sum += steps.samples(step);
      }
      CHECK(sum == size);
    }
}

}  // namespace annulus
