#pragma once

#include <CLI/CLI.hpp>

#include "src/train/train_options.h"

namespace annulus {

// The options of `annulus train`, by subject. Each function adds a group of the help.
void add_rate_options(CLI::App& command, ScheduleOptions& options);
void add_optimizer_options(CLI::App& command, TrainOptions& options);
CLI::Option* add_optimizer_option(CLI::App& command, OptimizerOptions& options);  // the first among these
void add_fine_tuning_options(CLI::App& command, TrainOptions& options);
void add_step_options(CLI::App& command, TrainOptions& options);
void add_checkpoint_and_evaluation_options(CLI::App& command, TrainOptions& options);
void add_metrics_options(CLI::App& command, MetricsOptions& options);
void add_strategy_options(CLI::App& command, StrategyChoice& choice);
void add_survival_options(CLI::App& command, SurvivalOptions& options);

}  // namespace annulus
