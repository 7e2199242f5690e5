#pragma once

#include <functional>
#include <optional>
#include <string>

#include "collectives/world/world.h"
#include "models/model.h"
#include "src/data/dataset.h"
#include "src/data/input_plan.h"
#include "src/job/activity.h"

namespace annulus {

struct Evaluation {
  std::size_t count = 0;  // of images that took part
  std::size_t correct = 0;
  std::optional<std::size_t> top5;  // whose label is among the five likeliest; none where there are no more classes
  std::size_t skipped = 0;          // bad ones
  double loss = 0;                  // mean

  double accuracy() const { return share(correct); }
  double share(std::size_t images) const { return static_cast<double>(images) / static_cast<double>(count); }
};

// "test loss 0.2571  test accuracy 90.99 %  top-5 99.87 %"
std::string to_string(const Evaluation& evaluation);

struct EvaluationPlan {
  std::size_t global_batch;                // images at once on all ranks, at least as many as there are ranks
  std::size_t batches = 0;                 // only so many; 0: all
  std::function<bool()> stop_requested{};  // whether this rank is to break off; not asked where it is empty
};

// The data set, each sample once, shared out over the ranks; the same result on every rank, and nothing where a rank
// was asked to stop: then all do so after the same batch. Collective. Plans what it needs at the first call for a batch
// size. `activity` is told how it goes.
std::optional<Evaluation> evaluate(const World& world, Model& model, const Dataset& dataset, const InputPlan& input,
                                   const EvaluationPlan& plan, Activity& activity);

}  // namespace annulus
