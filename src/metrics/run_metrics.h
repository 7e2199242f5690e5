#pragma once

#include <optional>
#include <string>
#include <vector>

#include "src/metrics/metrics_files.h"
#include "src/metrics/results.h"
#include "src/step/trainer.h"

namespace annulus {

struct MetricsOptions {
  std::vector<std::string> formats{"jsonl"};  // see metrics_formats(); none: nothing is written
  std::size_t every = 50;                     // steps
};

// Tells the metrics' files how a training run goes. On every rank; rank 0's writes.
class RunMetrics {
 public:
  // How far the run is.
  struct Place {
    std::uint64_t step;
    double epochs;  // done
  };

  // Of a run that goes on after `step`. All references must outlive this.
  RunMetrics(const World& world, const MetricsOptions& options, const std::filesystem::path& out, std::uint64_t step,
             Trainer& trainer, Optimizer& optimizer, Ledger& ledger, Activity& activity, MetricsFiles::Warn warn);

  // After each step, of so many images. A step that is written closes the books of all since the one before: what they
  // say is added to `epoch`'s. Collective then. Gradients are measured where `epoch` has no norms, which clipping
  // takes.
  void step(const Place& place, const StepMetrics& found, std::size_t images, EpochResult& epoch);

  void evaluation(const Place& place, const Evaluation& found);
  void epoch(const Place& place, const EpochResult& epoch);

 private:
  std::optional<double> gradient_norm(EpochResult& epoch);
  void write(const MetricsRecord& record);

  const World& world_;
  const MetricsOptions& options_;
  Trainer& trainer_;
  Optimizer& optimizer_;
  Ledger& ledger_;
  Activity& activity_;
  std::optional<MetricsFiles> files_;  // rank 0's
  std::size_t images_ = 0;             // of the steps whose books are open
};

}  // namespace annulus
