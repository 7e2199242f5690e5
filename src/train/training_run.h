#pragma once

#include <string>

#include "src/checkpoint/checkpoint_writer.h"
#include "src/data/loader.h"
#include "src/energy/energy_meter.h"
#include "src/metrics/run_metrics.h"
#include "src/train/dry_run.h"
#include "src/train/interval.h"
#include "src/train/replica.h"
#include "src/train/round_pace.h"
#include "src/train/run_record.h"
#include "src/train/skipped_updates.h"
#include "src/train/survival.h"
#include "src/train/training_inputs.h"

namespace annulus {

// The training loop of `annulus train`. Runs the steps of each epoch, and evaluates and writes checkpoints and results
// when they are due.
class TrainingRun {
 public:
  // Continues after `state`, which it keeps up to date. `survival`: null if ranks need not survive others. All
  // references must outlive the run. Throws Error. REQUIRES: the replica's parameters and optimizer are those of
  // `state`.
  TrainingRun(const TrainingInputs& inputs, Replica& replica, RunRecord& record, RunState& state, Survival* survival);

  // Returns 0 if the run is complete, kStoppedExitCode if a signal stopped it, or kHandedOverExitCode if the next job
  // continues it. Collective. Throws Error.
  int run();

  // Times a few steps, without evaluations, checkpoints and results. Collective. Throws Error.
  StepTrial try_steps();

 private:
  // Actions due at the end of a step.
  struct Due {
    bool stop = false, evaluation = false, checkpoint = false;
  };

  // These return false if the run was stopped.
  bool make_up_evaluation();
  bool test();
  void end_start_up();
  void report_end();
  bool next_job_waits() const;
  EpochResult& begin_epoch();
  void begin_progress();
  bool run_epoch();
  bool run_step(EpochResult& epoch);
  Due train_step(EpochResult& epoch);
  void inject_before(std::uint64_t step);
  void plan_ahead(const Batch& batch);
  bool follow_up(const Due& due);

  RunMetrics::Place place() const;
  ControlFlags control_flags(const Batch& batch) const;
  Due due(const StepPlan& step, const StepMetrics& metrics) const;
  bool evaluate();  // returns false if it was interrupted
  bool judge();
  std::optional<Evaluation> evaluate(const EvaluatedSplit& split, std::size_t batches);
  void checkpoint();
  std::optional<Evaluation> evaluate_average();
  void await_checkpoint();
  void note_recovery();
  CheckpointHeader checkpoint_header();
  Checkpoint copy_state();
  void write_stages();
  void close_epoch(EpochResult& epoch);
  void report(const EpochResult& epoch);
  void warn_of_rise();
  void save_results(const std::string& status);
  void finish(const std::string& status);

  const TrainingInputs& inputs_;
  const World& world_;
  const TrainOptions& options_;
  Replica& replica_;
  RunRecord& record_;
  RunState& state_;
  Survival* const survival_;
  Timer evaluation_timer_, checkpoint_timer_;
  CheckpointWriter checkpoints_;  // used by rank 0
  Loader loader_;
  std::optional<Pace> pace_;  // none if steps have a given size
  RunMetrics metrics_;
  EnergyMeter energy_;
  SkippedUpdates skipped_;
  const double earlier_joules_;  // before ranks were lost
  bool handed_over_ = false;     // to the next job
};

}  // namespace annulus
