#pragma once

#include <string>

#include "src/train/strategy_options.h"
#include "src/train/train_options.h"

namespace annulus {

// A single table in combinations.cpp says which features of training go with which strategies, and with each other.
// These functions throw Error with a line: what does not go with what, why, and what to do.
void check_combinations(const TrainOptions& options);
bool supports_verify(const TrainOptions& options);     // whether all that is given goes with --verify
void check_own_options(const StrategyChoice& choice);  // refuses another strategy's options

// Returns an option that needs evaluations, such as "--until"; empty if none is given.
std::string need_of_evaluation(const TrainOptions& options);

// Returns the table as the page combinations.md.
std::string combinations_page();

}  // namespace annulus
