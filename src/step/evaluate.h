#pragma once

#include <functional>
#include <optional>
#include <string>

#include "collectives/world/world.h"
#include "models/network/model.h"
#include "src/data/input_plan.h"
#include "src/data/samples.h"
#include "src/job/activity.h"
#include "src/step/class_counts.h"
#include "src/step/confusion_matrix.h"
#include "src/step/score.h"

namespace annulus {

struct Evaluation {
  std::string split;  // of the data, for messages and files: "validation" or "test"
  Score score;
  std::size_t skipped = 0;                     // bad samples
  std::optional<ConfusionMatrix> confusion{};  // if requested, for images of one class
  std::optional<ClassCounts> class_counts{};   // for images of several classes
};

// "test loss 0.2571  test accuracy 90.99 %  top-5 99.87 %"
std::string to_string(const Evaluation& evaluation);

struct EvaluationPlan {
  std::string split = "test";                          // see Evaluation
  std::size_t unit;                                    // images of a forward pass
  bool confusion = false;                              // count confusions of images of one class
  std::size_t units = 0;                               // maximum number of forward passes of all ranks; 0: no limit
  std::function<bool()> stop_requested{};              // whether this rank is to stop early; empty: never
  std::function<void(std::size_t images)> progress{};  // called after every batch; `images`: done on all ranks
};

// Evaluates each sample of the data set once, in units that are distributed over the ranks. Returns the same result on
// every rank, and with the same number of threads for any number of ranks, or none if any rank was asked to stop: then
// all ranks stop after the same unit. Collective. The first call for a unit's size plans the network. Records
// progress in `activity`.
// `replicas`: the ranks of `world` that compute the same stage of a pipeline; `world` if the model is whole.
std::optional<Evaluation> evaluate(const World& world, const World& replicas, Model& model, const Samples& dataset,
                                   const InputPlan& input, const EvaluationPlan& plan, Activity& activity);

}  // namespace annulus
