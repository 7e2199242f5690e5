#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "collectives/all_reduce.h"
#include "collectives/world/world.h"
#include "kernels/base/on_error.h"
#include "models/model.h"
#include "src/checkpoint/checkpoint_writer.h"
#include "src/data/bad_samples.h"
#include "src/data/dataset.h"
#include "src/data/input_plan.h"
#include "src/data/loader.h"
#include "src/io/folder_claim.h"
#include "src/io/progress.h"
#include "src/job/activity.h"
#include "src/job/watchdog.h"
#include "src/metrics/results.h"
#include "src/metrics/run_metrics.h"
#include "src/step/ledger.h"
#include "src/step/optimizer.h"
#include "src/step/timeline.h"
#include "src/step/trainer.h"
#include "src/train/interval.h"
#include "src/train/schedule.h"
#include "src/train/train_options.h"
#include "src/train/training_setup.h"

namespace annulus {

// One run of `annulus train`. The members are in the order of their dependencies.
class TrainingRun {
 public:
  TrainingRun(const World& world, const TrainOptions& options, Watchdog& watchdog);
  int run();  // returns the program's exit code, see train.h

 private:
  // Actions due at the end of a step.
  struct Due {
    bool stop = false, evaluation = false, checkpoint = false;
  };

  std::size_t share(std::size_t count) const {
    return split(count, static_cast<std::size_t>(world_.size()), static_cast<std::size_t>(world_.rank())).size();
  }
  // Of rank 0, whose choice of parameter layouts all ranks use.
  std::size_t largest_share(std::size_t count) const {
    return std::max<std::size_t>(split(count, static_cast<std::size_t>(world_.size()), 0).size(), 1);
  }
  std::size_t largest_part() const {
    return step_options(options_).part(largest_share(std::min(global_batch_, training_.info().size)), 0).size();
  }
  BatchRequest wanted_batches() const {
    return {options_.seed, global_batch_,   world_.rank(),       world_.size(),
            state_.cursor, options_.epochs, world_.local_rank(), world_.local_size()};
  }
  bool complete() const {
    return state_.cursor.epoch >= options_.epochs || (options_.max_steps > 0 && state_.step >= options_.max_steps);
  }
  bool is_over() const { return complete() && state_.score; }  // and evaluated
  RunMetrics::Place place() const {
    const auto images = static_cast<double>(training_.info().size);
    return {state_.step,
            static_cast<double>(state_.cursor.epoch) + static_cast<double>(state_.cursor.position) / images};
  }
  std::string order() const { return order_of(training_input_, training_.info()); }

  std::unique_ptr<AllReduce> connect();
  std::optional<std::size_t> earlier_crossover() const;
  void expect_sums() const;  // throws Error if --all-reduce none conflicts with other options
  void claim_output();
  void claim_files();
  void plan_networks();
  void resume();
  void read_earlier_results();
  void check_passes() const;  // throws Error if batch norm cannot be synchronized in every step
  void choose_buckets();
  std::string summing() const;  // describes everything that the last bits of all-reduces depend on
  void announce() const;

  // These return false if the run was stopped.
  bool make_up_evaluation();
  bool run_epoch();
  bool run_step(EpochResult& epoch);
  bool follow_up(const Due& due);

  ControlFlags votes() const;
  Due due(const StepPlan& step, const ControlFlags& votes) const;
  bool evaluate();  // returns false if it was interrupted
  void checkpoint();
  void await_checkpoint();
  Checkpoint checkpointed();
  void close_epoch(EpochResult& epoch);
  void report(const EpochResult& epoch);
  void save_results(const std::string& status);
  void report_nothing_to_do() const;
  void finish(const std::string& status);

  const double begun_ = now_seconds();
  const World& world_;
  const TrainOptions& options_;
  const double clock_offset_;
  Timeline timeline_;
  Activity& activity_;
  std::unique_ptr<Device> device_;
  Dataset training_, test_;
  const InputPlan training_input_, test_input_;
  std::size_t global_batch_;
  const Schedule schedule_;
  const std::vector<DataField> samples_;    // of both splits
  std::optional<StoredCheckpoint> stored_;  // on rank 0: the checkpoint to resume from, until it is restored
  std::optional<FolderClaim> claim_;        // on rank 0: of --out
  std::unique_ptr<AllReduce> all_reduce_;
  const Watchdog::Watched watched_;
  Model model_;
  Optimizer optimizer_;
  Ledger ledger_;
  Trainer trainer_;
  Progress progress_;
  RunState state_;
  Timer evaluation_timer_, checkpoint_timer_;
  CheckpointWriter checkpoints_;    // used by rank 0
  std::string summed_before_;       // summing() of the run that this one resumes, if recorded
  std::unique_ptr<Loader> loader_;  // begins at the state's cursor
  std::unique_ptr<RunMetrics> metrics_;
  BadSamples bad_samples_;
  RunResult result_;
  const OnError abandon_sums_{[this] { all_reduce_->abandon(); }};  // last, because freeing GPU memory waits for them
};

}  // namespace annulus
