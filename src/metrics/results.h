#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "kernels/update.h"
#include "src/io/output_file.h"
#include "src/step/evaluate.h"
#include "src/step/ledger.h"

namespace annulus {

// What a run found, as it stands in results.json and in the summary that is printed at its end.
struct EpochResult {
  std::size_t epoch = 0;        // 1 is the first
  std::size_t first_image = 0;  // above 0 if the run was resumed within this epoch: the rest is of the images after it
  std::size_t images = 0, steps = 0;
  std::size_t skipped = 0;  // bad samples, whose places others took
  double train_loss = 0, train_accuracy = 0;
  float rate = 0;                               // of the last step
  double seconds = 0;                           // of its steps
  std::optional<GradientNorms> gradient_norms;  // where they are clipped
  std::optional<Evaluation> test;               // where it was evaluated at its end
  Accounts accounts;
};

// An evaluation while training.
struct EvaluationResult {
  std::uint64_t step = 0;  // after which it was
  std::size_t epoch = 0;   // in which, 1 being the first
  Evaluation test;
  double seconds = 0;
};

struct RunResult {
  std::string status;  // "complete", "stopped", "running"
  int ranks = 1;
  std::size_t global_batch = 0;
  std::string schedule, recipe;  // of the learning rate; empty where none was asked for
  std::string device, all_reduce, buckets;
  std::vector<nlohmann::json> earlier_epochs, earlier_evaluations;  // of the run that this one resumes
  std::vector<nlohmann::json> data_changes;  // where a resume took other data: the step, and the difference
  std::vector<EpochResult> epochs;
  std::vector<EvaluationResult> evaluations;
  Accounts accounts;
  bool measuring = false;  // the gradients were not summed: this was no training
  double startup_seconds = 0, evaluation_seconds = 0, total_seconds = 0;
  double checkpoint_seconds = 0;        // in which training stood still
  double checkpoint_write_seconds = 0;  // beside it

  double images_per_second() const;  // of all ranks together, over the steps' time
};

nlohmann::json ledger_json(const Accounts& accounts);
std::string ledger_table(const Accounts& accounts);   // milliseconds a step and shares
std::string lateness_line(const Accounts& accounts);  // which rank is late; empty where the ranks do not wait
nlohmann::json to_json(const EpochResult& epoch);
nlohmann::json to_json(const EvaluationResult& evaluation);
nlohmann::json to_json(const RunResult& result);
std::string summary(const RunResult& result);

// Throws Error where the file cannot be read, or is no JSON.
nlohmann::json read_json(const std::filesystem::path& file);

// A report of this kind, which it is marked as. Whole or not at all.
void write_json(const std::filesystem::path& file, FileKind kind, nlohmann::json json);

}  // namespace annulus
