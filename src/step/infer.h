#pragma once

#include <functional>
#include <vector>

#include "models/network/model.h"
#include "src/data/input_plan.h"
#include "src/data/loader.h"
#include "src/job/activity.h"

namespace annulus {

// Runs inference on a batch, as a whole or in pieces. After each forward pass calls `done` with the network and the
// samples of the batch that it has just processed. Records progress in `activity`.
void infer(Model& model, const Batch& batch, const InputPlan& input, Activity& activity,
           const std::function<void(const Network& network, const Range& samples)>& done);

// Returns a value of the network's last forward pass, row-major. REQUIRES: it is still valid, see Network::value().
std::vector<float> read_value(Model& model, const Network& network, Value value);
// Returns the logits of the network's last forward pass, sample by sample.
std::vector<float> read_logits(Model& model, const Network& network);

}  // namespace annulus
