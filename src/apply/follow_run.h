#pragma once

#include "src/apply/evaluate_checkpoint.h"

namespace annulus {

// Runs `annulus eval --follow`: evaluates all checkpoints in the run's folder `options.checkpoint`, existing and new,
// the oldest first. Prints a line for each; with `options.json` it also appends a line to that file, with the JSON
// object of `annulus eval --json` and the options, and does not evaluate steps that the file already has. Throws Error
// if the file has lines from another run or from options with other results.
//
// Returns when the run is complete or stopped and every checkpoint has been evaluated. Throws Error if the run's job
// ended otherwise and no other job has continued it for `options.grace` seconds. Waits for a run that has not begun.
// Checkpoints that the run removes meanwhile are left out; damaged checkpoints are named and left out. Collective.
// Throws Error.
void follow_run(const World& world, const EvaluateOptions& options, Activity& activity);

}  // namespace annulus
