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

// One run of `annulus train`: everything that it needs, in the order in which it depends on each other.
class TrainingRun {
 public:
  TrainingRun(const World& world, const TrainOptions& options, Watchdog& watchdog);
  int run();  // the program's exit code, see train.h

 private:
  // What a step's end asks for.
  struct Due {
    bool stop = false, evaluation = false, checkpoint = false;
  };

  std::size_t share(std::size_t count) const {
    return split(count, static_cast<std::size_t>(world_.size()), static_cast<std::size_t>(world_.rank())).size();
  }
  // Rank 0's. What it chooses for its parameters' layouts, all ranks have.
  std::size_t largest_share(std::size_t count) const {
    return std::max<std::size_t>(split(count, static_cast<std::size_t>(world_.size()), 0).size(), 1);
  }
  std::size_t largest_part() const {
    return step_options(options_).part(largest_share(std::min(global_batch_, training_.info().size)), 0).size();
  }
  BatchRequest wanted_batches() const {
    return {options_.seed, global_batch_,   world_.rank(),       world_.size(),
            cursor_,       options_.epochs, world_.local_rank(), world_.local_size()};
  }
  bool complete() const {
    return cursor_.epoch >= options_.epochs || (options_.max_steps > 0 && step_ >= options_.max_steps);
  }
  bool is_over() const { return complete() && score_; }  // and evaluated
  RunMetrics::Place place() const {
    const auto images = static_cast<double>(training_.info().size);
    return {step_, static_cast<double>(cursor_.epoch) + static_cast<double>(cursor_.position) / images};
  }
  std::string order() const { return order_of(training_input_, training_.info()); }

  std::unique_ptr<AllReduce> connect();
  std::optional<std::size_t> earlier_crossover() const;
  void expect_sums() const;  // where the options want them
  void claim_output();
  void claim_files();
  void plan_networks();
  void resume();
  void read_earlier_results();
  void check_passes() const;  // that batch norm can be synchronized in every step
  void choose_buckets();
  std::string summing() const;  // what the last bits of sums depend on
  void announce() const;

  // False where the run was stopped.
  bool make_up_evaluation();
  bool run_epoch();
  bool run_step(EpochResult& epoch);
  bool follow_up(const Due& due);

  ControlFlags votes() const;
  Due due(const StepPlan& step, const ControlFlags& votes) const;
  bool evaluate();  // false where it was broken off
  void checkpoint();
  void await_checkpoint();
  Checkpoint state();
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
  std::optional<StoredCheckpoint> stored_;  // on rank 0, what is gone on from, until it is restored
  std::optional<FolderClaim> claim_;        // of --out, by rank 0
  std::unique_ptr<AllReduce> all_reduce_;
  const Watchdog::Watched watched_;
  Model model_;
  Optimizer optimizer_;
  Ledger ledger_;
  Trainer trainer_;
  Progress progress_;
  Cursor cursor_;
  std::uint64_t step_ = 0;
  std::optional<Score> score_;  // of the parameters as they are, where they were evaluated
  std::optional<Score> best_;   // of all checkpoints
  Timer evaluation_timer_, checkpoint_timer_;
  CheckpointWriter checkpoints_;       // used by rank 0
  std::uint64_t tuned_for_ranks_ = 0;  // the buckets; see Checkpoint
  std::string summed_before_;          // by the run that this one resumes, where it said so
  std::unique_ptr<Loader> loader_;     // begins at cursor_
  std::unique_ptr<RunMetrics> metrics_;
  BadSamples bad_samples_;
  RunResult result_;
  const OnError abandon_sums_{[this] { all_reduce_->abandon(); }};  // last, as freeing memory of a GPU waits for them
};

}  // namespace annulus
