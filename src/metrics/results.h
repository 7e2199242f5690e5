#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "kernels/update.h"
#include "src/energy/energy.h"
#include "src/io/output_file.h"
#include "src/io/sample_unit.h"
#include "src/metrics/start_up.h"
#include "src/step/evaluate.h"
#include "src/step/gpu_memory_use.h"
#include "src/step/gradient_noise.h"
#include "src/step/ledger.h"
#include "src/step/utilization.h"

namespace annulus {

// A run's results, as written to results.json and summarized at the end.
struct EpochResult {
  std::size_t epoch = 0;        // 1 is the first
  std::size_t first_image = 0;  // above 0 if the run was resumed within this epoch: the values cover the images from it
  std::size_t images = 0, steps = 0;
  std::size_t skipped = 0;  // bad samples, replaced by others
  double train_loss = 0;
  Measure measure = Measure::accuracy;  // what steps measure besides, and the mean over steps
  double train_measure = 0;
  float rate = 0;                               // the last step's
  double seconds = 0;                           // for all steps
  std::optional<GradientNorms> gradient_norms;  // if gradients are clipped
  std::optional<Evaluation> evaluation;         // if there was an evaluation at the end
  Accounts accounts;
};

// An evaluation while training.
struct EvaluationResult {
  std::uint64_t step = 0;  // evaluated after this step
  std::size_t epoch = 0;   // 1 is the first
  Evaluation evaluation;
  double seconds = 0;
};

// The evaluation on test images at the end of a run with validation images.
struct TestResult {
  std::uint64_t step = 0;  // the best checkpoint's, with the weights that are evaluated
  Evaluation evaluation;
  double seconds = 0;
};

// A rank that was lost while survivors went on, or excluded.
struct LostRank {
  int rank = 0;  // in the job
  std::string host;
  std::uint64_t step = 0;            // the survivors went on after this step
  std::uint64_t repeated_steps = 0;  // that rank 0 had completed beyond it
  double since = 0;                  // in now_seconds(): when it ended, or was last heard
  double seconds = 0;                // from then until the next step began
  bool excluded = false;             // by annulus control

  std::string fate() const { return excluded ? "was excluded" : "was lost"; }
};

// Flipped bits (--verify), after which the ranks went back and repeated steps.
struct FlippedBits {
  std::uint64_t found_after = 0;  // steps
  std::uint64_t repeated_steps = 0;
  std::vector<int> ranks;  // in the job: those that differ; all if it is unknown which
  std::string finding;     // a line
};

// A pipeline's stages.
struct PipelineResult {
  std::vector<std::string> cuts;     // the first layer in each stage after the first
  std::vector<double> milliseconds;  // for each stage and a micro-batch, as measured before
  double bound = 0;                  // see pipeline_bound()
};

struct RunResult {
  std::string status;    // "complete", "stopped", "running"
  std::string ended_by;  // the option that ended it early, such as "--patience 5"; else empty
  std::string began;     // date and time, kept if the run is resumed
  int ranks = 1;
  std::size_t servers = 0;  // ranks that only serve, see make_strategy()
  std::size_t global_batch = 0;
  SampleUnit unit;
  Utilization utilization;
  std::string schedule;  // the learning rate's
  std::string device, all_reduce, buckets;
  bool deterministic = true;  // see Tuning
  bool verifies = false;      // see src/train/verification.h
  std::optional<PipelineResult> pipeline;
  // For each rank, until the first checkpoint: to write it, rank 0 has a copy of all parameters and states.
  std::vector<std::uint64_t> peak_memory_bytes;
  std::optional<GpuMemoryUse> gpu_memory;                           // until the last checkpoint; none on CPUs
  Energy energy;                                                    // until the last epoch
  std::vector<nlohmann::json> earlier_epochs, earlier_evaluations;  // from the run that this run resumes
  std::vector<nlohmann::json> data_changes;  // for each resume with different data: the step and the difference
  std::vector<EpochResult> epochs;
  std::vector<EvaluationResult> evaluations;
  std::vector<LostRank> losses;
  std::vector<FlippedBits> flips;
  std::optional<TestResult> test;
  std::optional<NoiseScale> gradient_noise;  // over the logged steps since the start or the resume
  Accounts accounts;
  StartUp start_up;
  double evaluation_seconds = 0, total_seconds = 0;
  double earlier_seconds = 0;           // how long the earlier parts took, up to the resumed checkpoint
  double checkpoint_seconds = 0;        // training was paused for checkpoints
  double checkpoint_write_seconds = 0;  // checkpoints were written in the background

  std::size_t samples() const;        // over all steps and ranks
  double items_per_second() const;    // images or tokens, all ranks together, over the steps' time
  std::optional<double> mfu() const;  // over the steps' time; nothing if it is unknown
};

nlohmann::json ledger_json(const Accounts& accounts);
// Adds the joules of each part of the steps, over all ranks: shares of the energy, in proportion to the time.
nlohmann::json ledger_json(const Accounts& accounts, const Energy& energy);
nlohmann::json to_json(const GpuMemoryUse& use);
// Returns the source, watts, joules per step and kilowatt hours in all, or "unknown".
nlohmann::json energy_json(const Energy& energy, const StepTimes& mean);
std::string energy_line(const Energy& energy, const StepTimes& mean);
// Returns milliseconds per step, shares and, if the energy is known, joules per step.
std::string ledger_table(const Accounts& accounts, const Energy& energy = {});
std::string lateness_line(const Accounts& accounts);  // the latest rank; empty if the ranks do not wait
nlohmann::json to_json(const Score& score);           // the images, and what was measured
nlohmann::json to_json(const EpochResult& epoch, const SampleUnit& unit, const Utilization& utilization);
nlohmann::json to_json(const EvaluationResult& evaluation);
nlohmann::json to_json(const NoiseScale& noise);
nlohmann::json to_json(const LostRank& loss);
nlohmann::json to_json(const FlippedBits& flips);
nlohmann::json to_json(const PipelineResult& pipeline);
nlohmann::json to_json(const RunResult& result);
// Returns the result in a line: of the test, the last evaluation or, if there is none, the last epoch.
std::string outcome(const RunResult& result);
// Returns the text for the end of a run, before the outcome.
std::string summary(const RunResult& result);

// Adds the results that an earlier part of the run recorded in `file` up to this position. Does nothing if the file
// cannot be read.
void read_earlier_results(const std::filesystem::path& file, std::uint64_t epoch, std::uint64_t step,
                          RunResult& result);

// Throws Error if the file cannot be read or is not a JSON object.
nlohmann::json read_json(const std::filesystem::path& file);

// Writes a report that records its kind: atomically to a file, or to standard output (kStandardOutput).
void write_json(const std::filesystem::path& file, FileKind kind, nlohmann::json json);

}  // namespace annulus
