#include "src/metrics/run_metrics.h"

#include <array>
#include <cmath>
#include <utility>

namespace annulus {
namespace {

MetricsRecord record_of(std::string_view kind, const RunMetrics::Place& place) {
  return {kind, place.step, place.epochs, seconds_since_1970()};
}

}  // namespace

RunMetrics::RunMetrics(const World& world, const World& replicas, const MetricsOptions& options,
                       const std::filesystem::path& out, std::uint64_t step, const SampleUnit& unit,
                       const Utilization& utilization, Step& training_step, Optimizer& optimizer, Ledger& ledger,
                       GradientNoise& noise, Activity& activity, MetricsFiles::Warn warn)
    : world_(world),
      replicas_(replicas),
      options_(options),
      unit_(unit),
      utilization_(utilization),
      step_(training_step),
      optimizer_(optimizer),
      ledger_(ledger),
      noise_(noise),
      activity_(activity),
      open_([&options, out, warn = std::move(warn)](std::uint64_t after) {
        return MetricsFiles(options.formats, out, after, warn);
      }) {
  if (world.root()) files_.emplace(open_(step));
}

void RunMetrics::begin_step(std::uint64_t step) {
  if (PartNormProbe* const norms = step_.part_norms(); norms != nullptr && logs({step - 1, step})) norms->request();
}

void RunMetrics::step(const Place& place, const StepMetrics& found, std::size_t samples, EpochResult& epoch) {
  samples_ += samples;
  if (!logs({place.step - found.steps, place.step})) return;
  if (!step_.weights_apart()) step_.finish();  // else finishing changes the weights
  MetricsRecord record = record_of("train", place);
  record.values[MetricsRecord::loss] = found.loss;
  record.values[MetricsRecord::value_of(epoch.measure)] = found.measure;
  record.values[MetricsRecord::learning_rate] = epoch.rate;
  PartNormProbe* const part_norms = step_.part_norms();
  const PartNorms parts = part_norms == nullptr ? PartNorms{} : part_norms->take();
  const std::optional<double> norm = gradient_norm(epoch);
  record.values[MetricsRecord::gradient_norm] = norm;
  activity_.enter(Activity::Phase::between_steps);
  add_noise(parts, samples, norm);
  record.values[MetricsRecord::noise_scale] = noise_.recent();
  const Accounts accounts = ledger_.close(world_, replicas_);
  epoch.accounts += accounts;
  record.values[MetricsRecord::staleness] = accounts.mean_staleness();
  record.staleness_histogram = accounts.staleness;
  add_times(accounts.mean(), std::exchange(samples_, 0), record);
  write(record);
  world_.barrier();  // if rank 0 dies before it has written the record, no rank has completed this step
}

// Adds the speed and the parts of a step's time.
void RunMetrics::add_times(const StepTimes& times, std::size_t samples, MetricsRecord& record) const {
  if (times.steps == 0 || times.wall() <= 0) return;
  const auto steps = static_cast<double>(times.steps);
  const auto speed = unit_.each > 1 ? MetricsRecord::tokens_per_second : MetricsRecord::images_per_second;
  record.values[speed] = unit_.count(samples) / times.wall();
  record.values[MetricsRecord::mfu] = utilization_.share(samples, times.wall());
  record.values[MetricsRecord::step_seconds] = times.wall() / steps;
  for (std::size_t part = 0; part < StepTimes::kParts; ++part)
    record.values[MetricsRecord::first_part_seconds + part] = times.seconds[part] / steps;
}

// Runs on every rank although the result is the same: if only rank 0 measured, it would be late for the next step.
std::optional<double> RunMetrics::gradient_norm(EpochResult& epoch) {
  // With weights apart it would be the norm of a single part's gradients, on this rank.
  if (!epoch.gradient_norms && !step_.weights_apart()) optimizer_.measure_norm();
  const GradientNorms norms = optimizer_.take_norms();
  if (epoch.gradient_norms) *epoch.gradient_norms += norms;
  // It is infinite in a step that loss scaling skips.
  if (norms.steps == 0 || !std::isfinite(norms.last)) return std::nullopt;
  return norms.last;
}

// The gradients are the whole batch's, measured before clipping.
void RunMetrics::add_noise(const PartNorms& mine, std::size_t samples, std::optional<double> gradient_norm) {
  const double stages = world_.size() / replicas_.size();  // each stage has counted the parts
  std::array sums{mine.squares, mine.parts / stages};
  world_.sum(std::span(sums));
  if (sums[1] > 1 && gradient_norm)
    noise_.add(estimate_noise({sums[0], sums[1]}, *gradient_norm * *gradient_norm, samples));
}

void RunMetrics::evaluation(const Place& place, const Evaluation& found) {
  MetricsRecord record = record_of(found.split, place);
  for (const Measure measure : kMeasures) record.values[MetricsRecord::value_of(measure)] = found.score.value(measure);
  write(record);
}

void RunMetrics::epoch(const Place& place, const EpochResult& epoch) {
  samples_ = 0;  // an epoch's end resolves all timings
  MetricsRecord record = record_of("epoch", place);
  record.values[MetricsRecord::loss] = epoch.train_loss;
  record.values[MetricsRecord::value_of(epoch.measure)] = epoch.train_measure;
  record.values[MetricsRecord::learning_rate] = epoch.rate;
  add_times(epoch.accounts.mean(), epoch.images, record);
  write(record);
}

void RunMetrics::lost(const Place& place, const LostRank& loss) {
  MetricsRecord record = record_of("lost", place);
  record.values[MetricsRecord::lost_rank] = loss.rank;
  record.values[MetricsRecord::recovery_seconds] = loss.seconds;
  record.values[MetricsRecord::repeated_steps] = static_cast<double>(loss.repeated_steps);
  write(record);
}

void RunMetrics::write(const MetricsRecord& record) {
  if (!world_.root()) return;
  if (!files_) files_.emplace(open_(record.step - 1));  // rank 0 was lost in this step
  files_->write(record);
}

}  // namespace annulus
