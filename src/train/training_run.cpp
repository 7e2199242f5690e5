#include "src/train/training_run.h"

#include <utility>

#include "kernels/base/error.h"
#include "models/rewrites/freeze.h"
#include "src/checkpoint/gather_stages.h"
#include "src/checkpoint/restore.h"
#include "src/io/folder_claim.h"
#include "src/io/standard_output.h"
#include "src/io/terminal.h"
#include "src/job/machine.h"
#include "src/job/signals.h"
#include "src/onnx/network_file.h"
#include "src/step/replicas.h"
#include "src/train/loss_rise.h"

namespace annulus {
namespace {

constexpr double kWorthSaying = 0.1;  // a rank's lateness as a fraction of the step

// Of a dry run: steps that touch memory for the first time, and how long and how many times it measures.
constexpr std::size_t kWarmUp = 3;
constexpr double kTrialSeconds = 2, kMostTrials = 50;

// A step's position in epochs: the middle of the step's images.
double middle(const StepPlan& step, std::size_t size) {
  const auto images = static_cast<double>(step.positions.begin + step.positions.end) / 2;
  return static_cast<double>(step.epoch) + images / static_cast<double>(size);
}

}  // namespace

TrainingRun::TrainingRun(const TrainingInputs& inputs, Replica& replica, RunRecord& record, RunState& state,
                         Survival* survival)
    : inputs_(inputs),
      world_(inputs.world),
      options_(inputs.options),
      replica_(replica),
      record_(record),
      state_(state),
      survival_(survival),
      evaluation_timer_(inputs.evaluation.every),
      checkpoint_timer_(options_.checkpoint_every),
      checkpoints_(inputs.checkpoints([this, &record](std::uint64_t step, std::string_view stage) {
        inject_at(record.faults, world_.rank_in_job(world_.rank()), step, stage);
      })),
      loader_(*inputs.training, replica.input(inputs), inputs.batches_from(state.cursor)),
      metrics_(world_, inputs_.replicas(), options_.metrics, options_.out, state.step, record.result.unit,
               record.result.utilization, *replica.step, replica.optimizer, replica.ledger, record.noise,
               record.activity, [&record](const std::string& line) { record.progress.line_anyway(line); }),
      energy_(world_, *inputs.device),
      skipped_(world_, replica.model.parameters(), options_.skip_not_finite,
               [&record](const std::string& line) { record.progress.line_anyway(line); }),
      earlier_joules_(record.result.energy.joules) {
  replica.step->hooks.peek_next = [this] { return loader_.peek(); };
  replica.step->hooks.before_part = [this](std::size_t number) { inject_before(state_.step + 1 + number); };
  replica.step->hooks.judge = [this](const Parameter* one) { return skipped_.accept(state_.step + 1, one); };
  if (const auto pace = inputs.strategy_plan().pace) pace_.emplace(*pace, inputs.workers());
  for (int step = 0; pace_ && step < 2; ++step) loader_.plan(pace_->plan());  // the loader is one ahead
}

int TrainingRun::run() {
  watch_for_stop_signals();
  const bool recovered = survival_ != nullptr && survival_->recovered();
  if (!recovered) end_start_up();
  save_results("running");  // the last job's results may say otherwise
  bool goes_on = make_up_evaluation();
  if (goes_on && recovered) checkpoint();  // the loss may have interrupted one
  while (goes_on && (record_.epoch || !inputs_.complete(state_))) goes_on = run_epoch();
  // If a run was stopped in the last evaluation, only the evaluation is left.
  if (goes_on && inputs_.owes_evaluation(state_)) goes_on = follow_up({.evaluation = true, .checkpoint = true});
  if (goes_on) report_end();
  goes_on = goes_on && test();
  finish(goes_on ? "complete" : "stopped");
  if (goes_on) {
    if (!world_.root()) return 0;
    fmt::print("\n{}", summary(record_.result));
    print_anyway(outcome(record_.result));
    return 0;
  }
  record_.progress.line_anyway(
      handed_over_ ? fmt::format("stopped after {} steps: another job continues this run", state_.step)
                   : fmt::format("stopped after {} steps, as requested; continue with the same command and --resume",
                                 state_.step));
  return handed_over_ ? kHandedOverExitCode : kStoppedExitCode;
}

// The start-up ends when the first step has everything that it needs.
void TrainingRun::end_start_up() {
  record_.result.start_up.mark(StartUp::files);
  record_.activity.enter(Activity::Phase::input);
  if (!inputs_.complete(state_)) loader_.await();
  record_.result.start_up.mark(StartUp::first_batch);
}

void TrainingRun::report_end() {
  record_.result.ended_by = inputs_.early_end(state_);
  if (!record_.result.ended_by.empty())
    record_.progress.line(fmt::format("stopped after {} steps: {}", state_.step, record_.result.ended_by));
  if (options_.until && !options_.until->reached(*state_.score))
    record_.progress.line(fmt::format("--until {} was not reached", to_string(*options_.until)));
}

RunMetrics::Place TrainingRun::place() const {
  const auto images = static_cast<double>(inputs_.training->info().size);
  return {state_.step, static_cast<double>(state_.cursor.epoch) + static_cast<double>(state_.cursor.position) / images};
}

// Makes up for an evaluation that was due when the run was stopped. The last evaluation is left to run().
bool TrainingRun::make_up_evaluation() {
  if (state_.step == 0 || state_.score || inputs_.complete(state_)) return true;
  const StepPlan before{
      .epoch = state_.cursor.epoch - 1, .positions = {}, .last_of_epoch = state_.cursor.position == 0};
  const std::uint64_t first = state_.step - std::min<std::uint64_t>(inputs_.strategy_plan().steps, state_.step);
  return !evaluation_timer_.due({first, state_.step}, before, false) ||
         follow_up({.evaluation = true, .checkpoint = true});
}

// The epoch may have been interrupted by a loss of ranks, also when all of its steps were done.
EpochResult& TrainingRun::begin_epoch() {
  if (record_.epoch) return *record_.epoch;
  EpochResult& epoch = record_.epoch.emplace();
  epoch.epoch = state_.cursor.epoch + 1;
  epoch.first_image = state_.cursor.position;
  epoch.measure = step_measure(inputs_.training->info().labels);
  if (options_.clip_norm > 0) epoch.gradient_norms.emplace();
  return epoch;
}

bool TrainingRun::run_epoch() {
  EpochResult& epoch = begin_epoch();
  const TraceSpan span(record_.timeline.run(), "epoch", static_cast<std::int64_t>(epoch.epoch));
  begin_progress();
  energy_.begin_steps();
  bool goes_on = true;
  while (goes_on && !inputs_.complete(state_) && state_.cursor.epoch < epoch.epoch) goes_on = run_step(epoch);
  close_epoch(epoch);
  if (goes_on || state_.cursor.epoch == epoch.epoch) report(epoch);
  record_.epoch.reset();
  return goes_on;
}

// With --max-steps, the last epoch's progress is that towards the last step.
void TrainingRun::begin_progress() {
  std::size_t samples = inputs_.training->info().size;
  std::string what = fmt::format("epoch {}/{}", record_.epoch->epoch, options_.epochs);
  if (options_.max_steps > state_.step) {
    const std::size_t steps = std::min<std::size_t>(options_.max_steps - state_.step, samples);
    const std::size_t last = state_.cursor.position + steps * inputs_.global_batch;
    if (last < samples) what += fmt::format(", to step {}", options_.max_steps);
    samples = std::min(samples, last);
  }
  record_.progress.begin(what, samples, record_.result.unit);
}

StepTrial TrainingRun::try_steps() {
  StepTrial trial;
  EpochResult& epoch = begin_epoch();
  begin_progress();
  for (std::size_t wanted = kWarmUp + 1; trial.seconds.size() < wanted && !inputs_.complete(state_);) {
    const double begun = now_seconds();
    const std::uint64_t before = state_.step;
    train_step(epoch);
    replica_.step->finish();
    double seconds = now_seconds() - begun;  // of a round, if there are rounds
    world_.maximum({&seconds, 1});
    if (trial.seconds.size() == kWarmUp)
      wanted += static_cast<std::size_t>(std::min(kTrialSeconds / seconds, kMostTrials));
    trial.seconds.push_back(seconds / static_cast<double>(state_.step - before));
  }
  trial.warm_up = std::min(kWarmUp, trial.seconds.empty() ? 0 : trial.seconds.size() - 1);
  trial.seconds.erase(trial.seconds.begin(), trial.seconds.begin() + static_cast<std::ptrdiff_t>(trial.warm_up));
  return trial;
}

bool TrainingRun::run_step(EpochResult& epoch) {
  return follow_up(train_step(epoch));
}

TrainingRun::Due TrainingRun::train_step(EpochResult& epoch) {
  checkpoints_.check();
  if (survival_ != nullptr) survival_->begin_step();
  record_.timeline.begin_step(state_.step + 1);
  const Mark begun = inputs_.device->mark();
  record_.activity.enter(Activity::Phase::input);
  const StepPlan plan = loader_.next_plan();
  note_recovery();  // before expect(), after which ranks may have no exchange but the step's
  epoch.rate = inputs_.schedule.rate(middle(plan, inputs_.training->info().size), state_.rate_reductions);
  replica_.optimizer.set_rate(epoch.rate);
  replica_.step->expect(plan);
  record_.activity.begin_step(state_.step + 1);
  inject_before(state_.step + 1);
  record_.activity.enter(Activity::Phase::input);
  const Batch& batch = loader_.next();
  if (survival_ != nullptr && world_.root()) survival_->answer_requests();
  metrics_.begin_step(state_.step + 1);
  StepMetrics metrics;
  try {
    metrics = replica_.step->run(batch, control_flags(batch), begun);
  } catch (const ReplicasDiffer& difference) {
    throw ReplicasDiffer(fmt::format("step {}: {}", state_.step + 1, difference.finding()), difference.suspects(),
                         difference.sound_until());
  } catch (const Error& error) {
    fail("step {} (epoch {}): {}", state_.step + 1, epoch.epoch, error.what());
  }
  replica_.holds_state = false;  // if the record is not written, the step is repeated with it
  const bool regrouped = survival_ != nullptr && survival_->regrouped();
  if (pace_ && !regrouped) plan_ahead(batch);
  state_.step += metrics.steps;
  state_.score.reset();
  state_.cursor = after(batch.step);
  const std::size_t count = batch.step.global_batch();
  epoch.steps += metrics.steps;
  epoch.images += count;
  epoch.train_loss += metrics.loss * static_cast<double>(count);
  epoch.train_measure += metrics.measure * static_cast<double>(count);
  record_.progress.update(batch.step.positions.end, metrics.loss);
  if (metrics.control_flags.skipped > 0)
    epoch.skipped += skipped_on_all_ranks(inputs_.replicas(), record_.bad_samples.report(batch));
  metrics_.step(place(), metrics, count, epoch);
  replica_.holds_state = true;
  if (regrouped) fail("ranks were lost in step {}", state_.step);  // what is due now is done after the recovery
  const Due now = due(batch.step, metrics);
  // Also after an evaluation or a checkpoint, so that the run does not go back behind it.
  if (survival_ != nullptr) survival_->end_step(metrics.control_flags.copy > 0 || now.evaluation || now.checkpoint);
  return now;
}

void TrainingRun::inject_before(std::uint64_t step) {
  const Optimizer& optimizer = replica_.optimizer;
  inject(record_.faults, world_.rank_in_job(world_.rank()), step,
         {replica_.model, optimizer.states() > 0 ? optimizer.state(0) : DeviceView{}, optimizer.average()});
}

// Plans the step after the next one, which the loader is reading already.
void TrainingRun::plan_ahead(const Batch& batch) {
  record_.activity.enter(Activity::Phase::between_steps);
  const double updates = static_cast<double>(batch.size()) / static_cast<double>(inputs_.strategy_plan().unit);
  pace_->add(world_.gather(updates), world_.gather(replica_.step->own_seconds()));
  loader_.plan(pace_->plan());
}

// The run goes on after ranks were lost.
void TrainingRun::note_recovery() {
  std::vector<LostRank*> news;
  for (LostRank& loss : record_.result.losses)
    if (loss.seconds == 0) news.push_back(&loss);
  std::ranges::sort(news, {}, &LostRank::rank);  // ranks may have noticed them in another order
  for (LostRank* const loss : news) {
    double seconds = now_seconds() - loss->since;
    world_.broadcast(std::as_writable_bytes(std::span(&seconds, 1)));  // as rank 0 writes it
    loss->seconds = seconds;
    metrics_.lost(place(), *loss);
  }
}

ControlFlags TrainingRun::control_flags(const Batch& batch) const {
  const auto vote = [](bool wanted) { return wanted ? 1.0f : 0.0f; };
  const bool keeps_time = world_.root();
  return {.stop = vote(stop_requested()),
          .evaluate = vote(keeps_time && evaluation_timer_.time_has_come()),
          .checkpoint = vote(keeps_time && checkpoint_timer_.time_has_come()),
          .copy = vote(keeps_time && survival_ != nullptr && survival_->wants_copy()),
          .skipped = vote(!batch.bad.empty())};
}

TrainingRun::Due TrainingRun::due(const StepPlan& step, const StepMetrics& metrics) const {
  const ControlFlags& flags = metrics.control_flags;
  const Range steps{state_.step - metrics.steps, state_.step};
  return {.stop = flags.stop > 0,
          .evaluation = inputs_.owes_evaluation(state_) || evaluation_timer_.due(steps, step, flags.evaluate > 0),
          .checkpoint = inputs_.complete(state_) || checkpoint_timer_.due(steps, step, flags.checkpoint > 0)};
}

// Evaluates first, because the checkpoint records the score.
bool TrainingRun::follow_up(const Due& due) {
  const bool pauses = due.stop || due.evaluation || due.checkpoint;
  if (pauses) energy_.end_steps();
  const bool goes_on = !due.stop && (!due.evaluation || evaluate());
  const bool best = state_.score && judge();
  if (due.checkpoint || best || !goes_on || inputs_.complete(state_)) {
    checkpoint();
    handed_over_ = !inputs_.complete(state_) && next_job_waits();
  }
  if (pauses) energy_.begin_steps();
  return goes_on && !handed_over_;
}

// Also if a signal stops this job: the next one need not wait for it to be requeued. Collective.
bool TrainingRun::next_job_waits() const {
  std::uint8_t waits = world_.root() && is_claimed(next_claim(options_.out)) ? 1 : 0;
  world_.broadcast(std::as_writable_bytes(std::span(&waits, 1)));
  return waits != 0;
}

// Compares an evaluation with the best one. Returns whether it is better.
bool TrainingRun::judge() {
  const bool best = !state_.best || is_better(inputs_.best_by(), *state_.score, *state_.best);
  if (best) state_.best = state_.score;
  state_.evaluations_since_best = best ? 0 : state_.evaluations_since_best + 1;
  if (inputs_.schedule.reduces(state_.evaluations_since_best)) ++state_.rate_reductions;
  return best;
}

bool TrainingRun::evaluate() {
  replica_.step->finish();
  const TraceSpan span(record_.timeline.run(), "evaluation");
  const double begun = now_seconds();
  const auto found = evaluate_average();
  const double seconds = now_seconds() - begun;
  record_.result.evaluation_seconds += seconds;
  evaluation_timer_.restart();
  if (!found) return false;
  state_.score = found->score;
  const bool within_epoch = state_.cursor.position > 0;
  metrics_.evaluation(place(), *found);
  record_.result.evaluations.push_back(
      {state_.step, within_epoch ? state_.cursor.epoch + 1 : state_.cursor.epoch, *found, seconds});
  // An evaluation at the end of an epoch is printed in the epoch's line.
  if (within_epoch && !inputs_.complete(state_))
    record_.progress.line(fmt::format("step {}  {}", state_.step, to_string(*found)));
  save_results("running");
  return true;
}

// Evaluates the moving average of the weights, if there is one, in their place.
std::optional<Evaluation> TrainingRun::evaluate_average() {
  const auto evaluate_weights = [&] { return evaluate(*inputs_.evaluation.during, options_.evaluation_steps); };
  if (!replica_.optimizer.average()) return evaluate_weights();
  KeptState& kept_state = replica_.step->kept_state();
  const DeviceView average = kept_state.gather(replica_.optimizer.average());
  replica_.holds_state = false;
  kept_state.swap_weights(replica_.model.parameters(), average);
  const auto found = evaluate_weights();
  kept_state.swap_weights(replica_.model.parameters(), average);
  replica_.holds_state = true;
  return found;
}

std::optional<Evaluation> TrainingRun::evaluate(const EvaluatedSplit& split, std::size_t batches) {
  return annulus::evaluate(world_, inputs_.replicas(), replica_.model, *split.samples, split.plan,
                           {.split = split.name,
                            .unit = inputs_.largest_pass(),
                            .units = batches * inputs_.shards(),
                            .stop_requested = stop_requested},
                           record_.activity);
}

// Evaluates all test images with the best weights, if there are validation images. The last weights are in the last
// checkpoint and no longer needed.
bool TrainingRun::test() {
  if (!inputs_.evaluation.test) return true;
  await_checkpoint();
  const TraceSpan span(record_.timeline.run(), "test");
  const double begun = now_seconds();
  record_.activity.enter(Activity::Phase::resuming);
  replica_.holds_state = false;
  const std::uint64_t step = restore_best(inputs_.replicas(), checkpoints_.folder(), replica_.model);
  const auto found = evaluate(*inputs_.evaluation.test, 0);
  if (!found) return false;
  const double seconds = now_seconds() - begun;
  record_.result.evaluation_seconds += seconds;
  record_.result.test = TestResult{step, *found, seconds};
  metrics_.evaluation(place(), *found);
  return true;
}

void TrainingRun::checkpoint() {
  replica_.step->finish();
  const TraceSpan span(record_.timeline.run(), "checkpoint");
  const double begun = now_seconds();
  await_checkpoint();
  record_.result.peak_memory_bytes = world_.gather(std::uint64_t{peak_memory_bytes()});
  record_.result.gpu_memory = gpu_memory_use(world_, replica_.model, replica_.optimizer);
  record_.activity.enter(Activity::Phase::checkpoint);
  state_.ranks = static_cast<std::uint64_t>(world_.size());
  state_.shards = options_.shards;
  state_.threads = static_cast<std::uint64_t>(options_.device.threads);
  state_.milliseconds =
      static_cast<std::uint64_t>(1e3 * (record_.result.earlier_seconds + now_seconds() - program_begun()));
  state_.crossover = replica_.all_reduce.info().crossover;
  state_.loss_scaling.reset();
  if (LossScaling* scaling = inputs_.device->loss_scaling()) {
    LossScaling::State common = scaling->state();  // otherwise ranks that update apart would have different ones
    world_.broadcast(std::as_writable_bytes(std::span(&common, 1)));
    scaling->set_state(common);
    state_.loss_scaling = common;
  }
  Checkpoint copy;
  if (!inputs_.pipeline) copy = copy_state();
  check_replicas(inputs_.replicas(), replica_.model, replica_.optimizer, fmt::format("after step {}", state_.step));
  if (inputs_.pipeline)
    write_stages();
  else if (world_.root())
    checkpoints_.begin(std::move(copy));
  record_.result.checkpoint_seconds += now_seconds() - begun;
  checkpoint_timer_.restart();
}

// Returns a copy of the state on rank 0, which is written while training continues. Collective.
Checkpoint TrainingRun::copy_state() {
  const bool root = world_.root();
  KeptState& kept_state = replica_.step->kept_state();
  Checkpoint copy;
  if (root) copy = {checkpoint_header(), snapshot(replica_.model)};
  const auto copy_kept = [&](DeviceView state, const auto& add) {
    const DeviceView gathered = kept_state.gather(state);
    if (root) add(copy, replica_.model, gathered);
    kept_state.adopt(gathered, state);
  };
  for (std::size_t i = 0; i < replica_.optimizer.states(); ++i) copy_kept(replica_.optimizer.state(i), add_state);
  if (replica_.optimizer.average()) copy_kept(replica_.optimizer.average(), set_average);
  if (const DeviceView velocity = kept_state.outer_velocity(); velocity && root)
    set_outer_velocity(copy, replica_.model, velocity);
  return copy;
}

// Writes the state without copying it, because a rank may not have the memory for the other stages'.
void TrainingRun::write_stages() {
  if (!inputs_.replicas().root()) return;
  const ArraySource all = gather_stages(inputs_.pipeline->stages, arrays_of(replica_.model, replica_.optimizer));
  if (world_.root()) checkpoints_.write(checkpoint_header(), all);
}

// Waits on all ranks until the last checkpoint is written.
void TrainingRun::await_checkpoint() {
  record_.activity.enter(Activity::Phase::checkpoint);
  checkpoints_.finish();
  record_.activity.enter(Activity::Phase::meeting);
  world_.barrier();
}

CheckpointHeader TrainingRun::checkpoint_header() {
  CheckpointHeader checkpoint;
  checkpoint.run = state_;
  checkpoint.model = network_name(options_.model);
  checkpoint.onnx = inputs_.network.onnx;
  checkpoint.optimizer = replica_.optimizer.name();
  checkpoint.frozen = frozen_names(replica_.model.graph());
  if (replica_.plan) checkpoint.cuts = replica_.plan->cuts;
  checkpoint.loss = to_string(inputs_.task.loss);
  checkpoint.configuration = options_.configuration;
  checkpoint.seed = options_.seed;
  checkpoint.order = inputs_.sample_order();
  checkpoint.image = inputs_.training_plan.image;
  checkpoint.data = inputs_.training->info();
  checkpoint.samples = inputs_.samples;
  checkpoint.summing = replica_.summation(inputs_);
  return checkpoint;
}

void TrainingRun::close_epoch(EpochResult& epoch) {
  replica_.step->finish();
  energy_.end_steps();
  record_.activity.enter(Activity::Phase::between_steps);
  epoch.accounts += replica_.ledger.close(world_, inputs_.replicas());
  record_.result.accounts += epoch.accounts;
  record_.result.energy = energy_.total(world_);
  record_.result.energy.joules += earlier_joules_;
  if (epoch.gradient_norms) *epoch.gradient_norms += replica_.optimizer.take_norms();
  epoch.seconds = epoch.accounts.mean().wall();
  epoch.train_loss /= static_cast<double>(epoch.images);
  epoch.train_measure /= static_cast<double>(epoch.images);
  if (const auto& all = record_.result.evaluations; !all.empty() && all.back().step == state_.step && state_.score)
    epoch.evaluation = all.back().evaluation;
}

void TrainingRun::report(const EpochResult& epoch) {
  if (state_.cursor.epoch == epoch.epoch) metrics_.epoch(place(), epoch);  // a partial epoch may be resumed
  const std::size_t first = epoch.first_image, end = state_.cursor.epoch < epoch.epoch ? state_.cursor.position : 0;
  const std::string_view sample = record_.result.unit.each > 1 ? "window" : "image";
  const std::string part = first > 0 && end > 0 ? fmt::format(" (from {} {} to {})", sample, first, end)
                           : first > 0          ? fmt::format(" (from {} {} on)", sample, first)
                           : end > 0            ? fmt::format(" (to {} {})", sample, end)
                                                : "";
  record_.progress.line(
      fmt::format("epoch {}/{}{}  loss {:.4f}  {}  {}rate {:.4g}  {:.0f} {}/s  {:.1f} s", epoch.epoch, options_.epochs,
                  part, epoch.train_loss, to_string(epoch.measure, epoch.train_measure),
                  epoch.evaluation ? to_string(*epoch.evaluation) + "  " : "", epoch.rate,
                  record_.result.unit.count(epoch.images) / epoch.seconds, record_.result.unit.name, epoch.seconds));
  if (epoch.accounts.latest().share > kWorthSaying) record_.progress.line("  " + lateness_line(epoch.accounts));
  record_.result.epochs.push_back(epoch);
  warn_of_rise();
  save_results("running");
}

void TrainingRun::warn_of_rise() {
  const auto& epochs = record_.result.epochs;
  std::vector<double> losses;
  for (const EpochResult& epoch : epochs) losses.push_back(epoch.train_loss);
  if (const auto rise = loss_rise(losses))
    record_.progress.line_anyway(fmt::format("{}the loss of epoch {} is {:.1f} times that of epoch {}: lower {}",
                                             warning_mark(), epochs.back().epoch, rise->factor,
                                             epochs[rise->since].epoch, remedies_for_rise(options_.strategy)));
}

void TrainingRun::finish(const std::string& status) {
  const double begun = now_seconds();
  await_checkpoint();
  record_.result.checkpoint_seconds += now_seconds() - begun;
  note_recovery();
  save_results(status);
  const std::string text = record_.timeline.write(world_);
  if (!text.empty()) record_.progress.line(text);
}

void TrainingRun::save_results(const std::string& status) {
  record_.result.status = status;
  record_.result.gradient_noise = record_.noise.all();
  record_.result.checkpoint_write_seconds = checkpoints_.seconds();
  record_.result.total_seconds = now_seconds() - program_begun();
  if (world_.root()) write_json(options_.out / "results.json", FileKind::run_results, to_json(record_.result));
}

}  // namespace annulus
