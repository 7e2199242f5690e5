#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "src/metrics/metrics_files.h"
#include "src/metrics/results.h"
#include "src/step/step.h"
#include "src/step/utilization.h"

namespace annulus {

struct MetricsOptions {
  std::vector<std::string> formats{"jsonl"};  // see metrics_formats(); none: nothing is written
  std::size_t every = 50;                     // steps
};

// Writes a training run's metrics. Every rank has a RunMetrics; rank 0 writes the files.
class RunMetrics {
 public:
  // The run's progress.
  struct Place {
    std::uint64_t step;
    double epochs;  // done
  };

  // `step`: the run continues after it. All references must outlive this. `replicas`: the ranks in `world` that compute
  // the same pipeline stage; all if there is no pipeline.
  RunMetrics(const World& world, const World& replicas, const MetricsOptions& options, const std::filesystem::path& out,
             std::uint64_t step, const SampleUnit& unit, const Utilization& utilization, Step& training_step,
             Optimizer& optimizer, Ledger& ledger, GradientNoise& noise, Activity& activity, MetricsFiles::Warn warn);

  // To be called before step number `step`. If it will be logged, it also measures the gradient noise.
  void begin_step(std::uint64_t step);

  // To be called after each step over `samples` samples. A logged step resolves the timings of all steps since the
  // previous logged step and adds them to `epoch`'s; it is collective. It also measures the gradient norm, unless
  // clipping already does, or the step has no single gradient, and adds an estimate to the gradient noise.
  void step(const Place& place, const StepMetrics& found, std::size_t samples, EpochResult& epoch);

  void evaluation(const Place& place, const Evaluation& found);
  void epoch(const Place& place, const EpochResult& epoch);
  void lost(const Place& place, const LostRank& loss);

 private:
  // Whether any of these steps is logged.
  bool logs(const Range& steps) const {
    return !options_.formats.empty() && steps.end / options_.every > steps.begin / options_.every;
  }
  std::optional<double> gradient_norm(EpochResult& epoch);
  void add_noise(const PartNorms& mine, std::size_t samples, std::optional<double> gradient_norm);
  void add_times(const StepTimes& times, std::size_t samples, MetricsRecord& record) const;
  void write(const MetricsRecord& record);

  const World& world_;
  const World& replicas_;
  const MetricsOptions& options_;
  const SampleUnit unit_;
  const Utilization utilization_;
  Step& step_;
  Optimizer& optimizer_;
  Ledger& ledger_;
  GradientNoise& noise_;
  Activity& activity_;
  const std::function<MetricsFiles(std::uint64_t step)> open_;  // to continue after this step
  std::optional<MetricsFiles> files_;                           // rank 0's
  std::size_t samples_ = 0;                                     // since the last logged step
};

}  // namespace annulus
