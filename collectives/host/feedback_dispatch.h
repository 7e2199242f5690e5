#pragma once

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "collectives/host/dispatch.h"

namespace annulus {

// Dispatches all-reduces with error feedback to one algorithm, and all others to another one, which is exact.
class FeedbackDispatch final : public Dispatch {
 public:
  FeedbackDispatch(std::unique_ptr<AllReduceAlgorithm> exact, std::unique_ptr<AllReduceAlgorithm> feedback)
      : Dispatch({fmt::format("{}, with error feedback {}", exact->info().order, feedback->info().order),
                  exact->info().crossover, feedback->info().wire, exact->info().halves},
                 std::move(exact), std::move(feedback)) {}

  void all_reduce_with_feedback(std::span<float> values, std::span<float> error) override {
    other().all_reduce_with_feedback(values, error);
  }
};

}  // namespace annulus
