#pragma once

#include "src/apply/evaluate_checkpoint.h"

namespace annulus {

// Runs `annulus eval --follow`: evaluates all checkpoints of the run in the folder `options.checkpoint`, those that are
// there and each new one, the oldest first. Prints a line for each; with `options.json` it also appends a line with the
// JSON object of `annulus eval --json`, and the options, to that file, and does not evaluate the steps that the file
// already has. Throws Error if the file has lines of another run or of options with other results.
//
// Returns when the run is complete or stopped and every checkpoint has been evaluated. Throws Error if its job ended
// otherwise and no other has continued it for `options.grace` seconds. A run that has not begun is waited for.
// Checkpoints that the run removes meanwhile are left out; damaged ones are named and left out. Collective. Throws
// Error.
void follow_run(const World& world, const EvaluateOptions& options, Activity& activity);

}  // namespace annulus
