#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "models/network/model.h"
#include "src/data/input_plan.h"
#include "src/data/loader.h"
#include "src/job/activity.h"

namespace annulus {

// Runs inference on every view (input.views) of a batch's images. Returns each sample's weighted mean logits; nothing
// if this rank's stage has no logits. Records progress in `activity`.
std::vector<float> infer_views(Model& model, const Batch& batch, const InputPlan& input, Activity& activity);

// Returns what SoftmaxCrossEntropy computes in inference from such logits.
LossSums class_sums(std::span<const float> logits, std::span<const std::int32_t> labels);

}  // namespace annulus
