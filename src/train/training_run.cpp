#include "src/train/training_run.h"

#include <algorithm>
#include <fstream>
#include <utility>

#include "collectives/world/aligned_clock.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "src/checkpoint/restore.h"
#include "src/io/atomic_file.h"
#include "src/io/bytes.h"
#include "src/io/printable.h"
#include "src/job/consistency.h"
#include "src/job/open_device.h"
#include "src/job/signals.h"
#include "src/job/threads.h"
#include "src/step/bucket_tuner.h"
#include "src/step/replicas.h"
#include "src/train/train.h"

namespace annulus {
namespace {

void check_consistent(const World& world, const TrainOptions& options, const std::vector<DataField>& data) {
  Agreement agreement(world);
  add_configuration(agreement, options.configuration);
  agreement.add("--resume", options.resume);
  agreement.add("--timeline, given or not,", !options.timeline.file.empty());
  agreement.add("--data-changed", options.data_changed);
  for (const DataField& field : data) agreement.add(field.name, field.value);
  agreement.check();
}

constexpr double kWorthSaying = 0.02;  // a rank's lateness as a fraction of the step

// The position of a step in epochs: that of the middle of its images.
double middle(const StepPlan& step, std::size_t size) {
  const auto images = static_cast<double>(step.positions.begin + step.positions.end) / 2;
  return static_cast<double>(step.epoch) + images / static_cast<double>(size);
}

std::vector<DataField> samples_of(const Dataset& training, const Dataset& test) {
  std::vector<DataField> fields = sample_fields("training", training);
  std::ranges::move(sample_fields("test", test), std::back_inserter(fields));
  return fields;
}

}  // namespace

TrainingRun::TrainingRun(const World& world, const TrainOptions& options, Watchdog& watchdog)
    : world_(world),
      options_(options),
      clock_offset_(clock_offset_to_root(world)),
      timeline_(options.timeline, clock_offset_),
      activity_(watchdog.activity()),
      device_(open_device(world, options.device)),
      training_(data_files(options.data.files), "train"),
      test_(data_files(options.data.files), "test"),
      training_input_(plan_input(options.data, training_.info(), Purpose::training, decoding_threads(*device_))),
      test_input_(plan_input(options.data, test_.info(), Purpose::evaluation, decoding_threads(*device_))),
      global_batch_(global_batch_of(world, options)),
      schedule_(options.schedule, global_batch_, options.epochs),
      samples_(samples_of(training_, test_)),
      all_reduce_(connect()),
      watched_(watchdog, all_reduce_->progress()),
      model_(*device_, graph_of(world, options, task_of(training_.info(), training_input_, options)), Mode::training,
             largest_part(), allocate_in(*all_reduce_), [this] { activity_.tick(); }),
      optimizer_(*device_, model_.parameters(), update_rule(options), schedule_.rate(0), options.ema),
      ledger_(clock_offset_),
      trainer_(model_, *all_reduce_, optimizer_, ledger_, options.buckets, activity_, timeline_.step(),
               step_options(options)),
      progress_(world.root(), options.epochs),
      evaluation_timer_(options.evaluate_every),
      checkpoint_timer_(options.checkpoint_every),
      checkpoints_({options.out, options.keep,
                    [this](std::uint64_t step, std::string_view stage) {
                      inject_at(options_.faults, world_.rank(), step, stage);
                    }}),
      bad_samples_(world.rank()) {
  activity_.enter(Activity::Phase::comparing);
  check_same_network(world, model_);
  activity_.enter(Activity::Phase::planning);
  all_reduce_->record_to(timeline_.all_reduce());
  model_.record_to(timeline_.step());
  plan_networks();
  model_.parameters().initialize(options.seed);
  optimizer_.begin_average();
  result_.buckets = to_string(trainer_.bucket_options());
  if (options.resume) resume();
  if (!is_over()) claim_files();
  if (options.sync_batch_norm) check_passes();
  choose_buckets();
  announce();
  loader_ = std::make_unique<Loader>(training_, training_input_, wanted_batches());
  metrics_ =
      std::make_unique<RunMetrics>(world, options.metrics, options.out, state_.step, trainer_, optimizer_, ledger_,
                                   activity_, [this](const std::string& line) { progress_.line(line); });
  result_.ranks = world.size();
  result_.global_batch = global_batch_;
  result_.schedule = schedule_.description();
  result_.recipe = options.recipe;
  result_.device = device_->description();
  result_.all_reduce = all_reduce_->info().description;
  result_.measuring = !all_reduce_->info().reduces;
}

// The ranks compare their options and data first: a difference would make later collectives hang or corrupt data.
std::unique_ptr<AllReduce> TrainingRun::connect() {
  activity_.enter(Activity::Phase::comparing);
  check_consistent(world_, options_, data_fields(training_.info(), samples_));
  activity_.enter(Activity::Phase::connecting);
  expect_sums();
  claim_output();
  if (options_.resume && world_.root()) stored_ = CheckpointFolder(options_.out, options_.keep).newest();
  auto all_reduce =
      make_all_reduce(options_.all_reduce, world_, *device_, parse_wire_type(options_.wire), earlier_crossover());
  activity_.enter(Activity::Phase::planning);
  return all_reduce;
}

// Returns the crossover of the resumed run if it had the same number of ranks: measured again, it might differ, and
// with it the last bits of all-reduces.
std::optional<std::size_t> TrainingRun::earlier_crossover() const {
  struct {
    bool known;
    std::uint64_t bytes;
  } earlier{};
  if (stored_ && stored_->checkpoint.run.ranks == static_cast<std::uint64_t>(world_.size()) &&
      stored_->checkpoint.run.crossover)
    earlier = {true, *stored_->checkpoint.run.crossover};
  world_.broadcast(std::as_writable_bytes(std::span(&earlier, 1)));
  return earlier.known ? std::optional<std::size_t>(earlier.bytes) : std::nullopt;
}

void TrainingRun::expect_sums() const {
  if (options_.all_reduce != "none" || world_.size() == 1) return;
  if (options_.resume)
    fail("--all-reduce none measures and does not train, so it cannot resume a run; remove --resume");
  if (options_.evaluate_every.unit == Interval::Unit::seconds)
    fail("--all-reduce none exchanges nothing, not even the time: give --eval-every in steps or epochs");
}

// A run writes only to its output folder. A folder holds one run, so earlier results are never lost.
void TrainingRun::claim_output() {
  if (!world_.root()) return;
  const CheckpointFolder checkpoints(options_.out, options_.keep);
  const bool has_checkpoints = !checkpoints.empty();
  claim_.emplace(options_.out, has_checkpoints || options_.overwrite,
                 "choose another --out, or give --overwrite to write to this one");
  if (!options_.resume && !checkpoints.empty())  // checked after the claim: no other run can add one now
    fail("{} already has checkpoints of an earlier run: continue it with --resume, or choose another --out",
         options_.out.string());
}

// Replaces the files of an earlier part of this run.
void TrainingRun::claim_files() {
  if (world_.root()) write_atomically(options_.out / "config.toml", std::as_bytes(std::span(options_.configuration)));
  timeline_.claim(world_);
}

// Plans for all batch sizes, so that no step has to plan: the last batches of an epoch and of an evaluation are
// smaller.
void TrainingRun::plan_networks() {
  const std::size_t size = training_.info().size;
  const StepOptions step = step_options(options_);
  for (const std::size_t count : {share(std::min(global_batch_, size)), share(size % global_batch_)})
    for (std::size_t number = 0; number < step.parts_of(count); ++number)
      model_.network(Mode::training, step.part(count, number).size());
}

void TrainingRun::resume() {
  activity_.enter(Activity::Phase::resuming);
  const RunKind kind{options_.model, options_.seed, order(), data_fields(training_.info(), samples_),
                     options_.data_changed};
  const auto restored = restore(world_, checkpoints_.folder(), std::exchange(stored_, {}), kind, model_, optimizer_);
  if (!restored) {
    progress_.line(fmt::format("nothing to resume in {}: starting a new run", options_.out.string()));
    return;
  }
  state_ = restored->run;
  const std::uint64_t tuned_for_ranks = std::exchange(state_.tuned_for_ranks, 0);
  check_replicas(world_, model_, optimizer_, "after resuming");
  if (options_.tune_buckets && tuned_for_ranks == static_cast<std::uint64_t>(world_.size()) &&
      (state_.buckets.deferred == 0 || trainer_.may_defer())) {
    state_.tuned_for_ranks = tuned_for_ranks;  // the same buckets as before
    trainer_.cut_buckets(state_.buckets);
    result_.buckets = to_string(trainer_.bucket_options()) + ", as tuned before";
  }
  summed_before_ = restored->summing;
  if (!world_.root()) return;
  read_earlier_results();
  for (const std::string& line : restored->damaged) progress_.line(line);
  if (restored->data_difference) {
    result_.data_changes.push_back({{"step", state_.step}, {"difference", *restored->data_difference}});
    progress_.line(fmt::format("the data was changed (--data-changed): {}", *restored->data_difference));
  }
  progress_.line(fmt::format("resuming after {} steps: epoch {}, image {} of {}", state_.step, state_.cursor.epoch + 1,
                             state_.cursor.position, training_.info().size));
}

// Reads the results up to the position at which the run resumes.
void TrainingRun::read_earlier_results() {
  std::ifstream file(options_.out / "results.json");
  const auto earlier = nlohmann::json::parse(file, nullptr, false);
  if (!earlier.is_object()) return;
  const auto take = [&](const char* list, const char* number, std::uint64_t last, auto& results) {
    for (const auto& result : earlier.value(list, nlohmann::json::array()))
      if (result.value(number, std::uint64_t{0}) <= last) results.push_back(result);
  };
  take("epochs", "epoch", state_.cursor.epoch, result_.earlier_epochs);
  take("evaluations", "step", state_.step, result_.earlier_evaluations);
  take("data_changes", "step", state_.step, result_.data_changes);
}

void TrainingRun::check_passes() const {
  const std::size_t size = training_.info().size;
  for (const std::size_t left : {size - state_.cursor.position, size})  // of the resumed epoch, and of later ones
    for (const std::size_t images : {std::min(global_batch_, left), left % global_batch_})
      expect_same_passes(world_, options_, images);
}

void TrainingRun::choose_buckets() {
  if (!options_.tune_buckets || state_.tuned_for_ranks > 0) return;
  state_.tuned_for_ranks = static_cast<std::uint64_t>(world_.size());
  activity_.enter(Activity::Phase::tuning);
  BatchRequest trial = wanted_batches();
  trial.end_epoch = state_.cursor.epoch + 1;  // also if the run is complete
  Loader loader(training_, training_input_, trial);
  result_.buckets = to_string(tune_buckets(world_, trainer_, loader.next()));
}

std::string TrainingRun::summing() const {
  const std::string parts = options_.accumulate > 1 ? fmt::format(", {} parts", options_.accumulate) : "";
  if (world_.size() == 1) return "one rank" + parts;
  return fmt::format("{} ranks, {}, buckets of {}{}", world_.size(), all_reduce_->info().order,
                     format_bytes(trainer_.bucket_options().bytes), parts);
}

void TrainingRun::announce() const {
  activity_.enter(Activity::Phase::meeting);
  const std::string warning = device_warning(world_, *device_);
  const ThreadReport threads = report_threads(world_, choose_threads(options_.device.threads));
  if (!world_.root()) return;
  const DatasetInfo& data = training_.info();
  fmt::print("annulus {}: {} on {} rank{}, {}\n", ANNULUS_VERSION, options_.model, world_.size(),
             world_.size() == 1 ? "" : "s", device_->description());
  if (device_->shares_host_memory()) {
    fmt::print("  threads     {}\n", threads.text);
    if (!threads.warning.empty()) fmt::print("  warning     {}\n", threads.warning);
  }
  fmt::print("  data        {}: {} training and {} test images{}, {} classes\n", printable(name_of(options_.data)),
             data.size, test_.info().size,
             data.encoded() ? "" : fmt::format(" of {}x{}x{}", data.height, data.width, data.channels),
             data.classes.size());
  fmt::print("  input       {}\n", to_string(training_input_));
  fmt::print("  parameters  {}, gradients {} in {} bucket{} of up to {}\n", model_.parameters().count(),
             format_bytes(model_.parameters().gradients().bytes), trainer_.buckets().size(),
             trainer_.buckets().size() == 1 ? "" : "s", result_.buckets);
  fmt::print("  all-reduce  {}\n", all_reduce_->info().description);
  if (!summed_before_.empty() && summed_before_ != summing())
    fmt::print("  note        rounding may differ from the run before the checkpoint, which had {}\n", summed_before_);
  for (const std::string& text : {warning, unused_wire(*all_reduce_, parse_wire_type(options_.wire))})
    if (!text.empty()) fmt::print("  warning     {}\n", text);
  if (!all_reduce_->info().reduces)
    fmt::print(
        "  warning     this measures and does not train: the replicas diverge and are not compared, no checkpoint is "
        "written, a signal ends the run immediately, and loss and accuracy are meaningless\n");
  if (!options_.recipe.empty()) fmt::print("  recipe      {}\n", options_.recipe);
  const std::size_t parts = step_options(options_).parts_of(share(global_batch_));
  fmt::print("  step        global batch {} ({} on rank 0{}), the loss is the mean over it\n", global_batch_,
             share(global_batch_), parts > 1 ? fmt::format(", in {} parts", parts) : "");
  fmt::print("  rate        {}\n", schedule_.description());
  if (options_.ema > 0) fmt::print("  weights     their moving average (decay {}) is evaluated\n", options_.ema);
  fmt::print("  writes to   {}\n", printable(options_.out.string()));
  fmt::print("configuration (also in {}):\n", printable((options_.out / "config.toml").string()));
  fmt::print("{}", printable_lines(options_.configuration));
  std::fflush(stdout);
}

int TrainingRun::run() {
  if (is_over()) {
    if (world_.root()) report_nothing_to_do();
    return 0;
  }
  // Without all-reduces ranks cannot agree on the step at which to stop, and there is no checkpoint to resume from.
  if (all_reduce_->info().reduces) watch_for_stop_signals();
  result_.startup_seconds = now_seconds() - begun_;
  bool goes_on = make_up_evaluation();
  while (goes_on && !complete()) goes_on = run_epoch();
  // If a run was stopped in its last evaluation, only the evaluation is left.
  if (goes_on && !state_.score) goes_on = follow_up({.evaluation = true, .checkpoint = true});
  finish(goes_on ? "complete" : "stopped");
  if (!goes_on) {
    progress_.line(
        fmt::format("stopped after {} steps, as requested; continue with the same command and --resume", state_.step));
    return kStoppedExitCode;
  }
  if (world_.root()) fmt::print("\n{}", summary(result_));
  return 0;
}

// The run was complete before it was resumed: its results do not change.
void TrainingRun::report_nothing_to_do() const {
  const std::filesystem::path file = options_.out / "results.json";
  std::ifstream stream(file);
  nlohmann::json results = nlohmann::json::parse(stream, nullptr, false);
  if (results.is_object() && results.value("status", "") != "complete") {  // killed after its last checkpoint
    results["status"] = "complete";
    write_json(file, FileKind::run_results, results);
  }
  fmt::print("nothing to do: this run is complete after {} steps, {} of {} epochs; to continue, raise --epochs{}\n",
             state_.step, state_.cursor.epoch, options_.epochs, options_.max_steps > 0 ? " or --max-steps" : "");
  fmt::print("test accuracy {:.2f} %  ({} of {} images){}\n", 100 * state_.score->accuracy(), state_.score->correct,
             state_.score->count, state_.best ? fmt::format(", best {:.2f} %", 100 * state_.best->accuracy()) : "");
}

// Makes up for an evaluation that was due when the run was stopped. The last evaluation is left to run().
bool TrainingRun::make_up_evaluation() {
  if (state_.step == 0 || state_.score || complete()) return true;
  const StepPlan before{
      .epoch = state_.cursor.epoch - 1, .positions = {}, .last_of_epoch = state_.cursor.position == 0};
  return !evaluation_timer_.due(state_.step, before, false) || follow_up({.evaluation = true, .checkpoint = true});
}

bool TrainingRun::run_epoch() {
  EpochResult epoch;
  epoch.epoch = state_.cursor.epoch + 1;
  epoch.first_image = state_.cursor.position;
  const TraceSpan span(timeline_.run(), "epoch", static_cast<std::int64_t>(epoch.epoch));
  if (options_.clip_norm > 0) epoch.gradient_norms.emplace();
  progress_.begin_epoch(epoch.epoch, training_.info().size);
  bool goes_on = true;
  while (goes_on && !complete() && state_.cursor.epoch < epoch.epoch) goes_on = run_step(epoch);
  close_epoch(epoch);
  if (goes_on || state_.cursor.epoch == epoch.epoch) report(epoch);
  return goes_on;
}

bool TrainingRun::run_step(EpochResult& epoch) {
  checkpoints_.look();
  timeline_.begin_step(state_.step + 1);
  const Mark begun = device_->mark();
  activity_.begin_step(state_.step + 1);
  inject(options_.faults, world_.rank(), state_.step + 1, model_);
  activity_.enter(Activity::Phase::input);
  const Batch& batch = loader_->next();
  epoch.rate = schedule_.rate(middle(batch.step, training_.info().size));
  optimizer_.set_rate(epoch.rate);
  bad_samples_.add(batch);
  StepMetrics metrics;
  try {
    metrics = trainer_.step(batch, votes(), begun);
  } catch (const Error& error) {
    fail("step {} (epoch {}): {}", state_.step + 1, epoch.epoch, error.what());
  }
  ++state_.step;
  state_.score.reset();
  state_.cursor = after(batch.step);
  const std::size_t count = batch.step.global_batch();
  ++epoch.steps;
  epoch.images += count;
  epoch.train_loss += metrics.loss * static_cast<double>(count);
  epoch.train_accuracy += metrics.accuracy * static_cast<double>(count);
  progress_.update(batch.step.positions.end, metrics.loss);
  metrics_->step(place(), metrics, count, epoch);
  return follow_up(due(batch.step, metrics.votes));
}

ControlFlags TrainingRun::votes() const {
  const auto vote = [](bool wanted) { return wanted ? 1.0f : 0.0f; };
  const bool keeps_time = world_.root();
  return {.stop = vote(stop_requested()),
          .evaluate = vote(keeps_time && evaluation_timer_.time_has_come()),
          .checkpoint = vote(keeps_time && checkpoint_timer_.time_has_come())};
}

TrainingRun::Due TrainingRun::due(const StepPlan& step, const ControlFlags& votes) const {
  return {.stop = votes.stop > 0,
          .evaluation = complete() || evaluation_timer_.due(state_.step, step, votes.evaluate > 0),
          .checkpoint = complete() || checkpoint_timer_.due(state_.step, step, votes.checkpoint > 0)};
}

// Evaluates first, because the checkpoint records the score.
bool TrainingRun::follow_up(const Due& due) {
  const bool goes_on = !due.stop && (!due.evaluation || evaluate());
  const bool best = state_.score && (!state_.best || state_.score->accuracy() > state_.best->accuracy());
  if (best) state_.best = state_.score;
  if (due.checkpoint || best || !goes_on) checkpoint();
  return goes_on;
}

bool TrainingRun::evaluate() {
  trainer_.finish();
  const TraceSpan span(timeline_.run(), "evaluation");
  const double begun = now_seconds();
  optimizer_.exchange_average();
  const auto found = annulus::evaluate(world_, model_, test_, test_input_,
                                       {.global_batch = largest_part() * static_cast<std::size_t>(world_.size()),
                                        .batches = options_.evaluation_steps,
                                        .stop_requested = stop_requested},
                                       activity_);
  optimizer_.exchange_average();
  const double seconds = now_seconds() - begun;
  result_.evaluation_seconds += seconds;
  evaluation_timer_.restart();
  if (!found) return false;
  state_.score = Score{found->correct, found->count};
  const bool within_epoch = state_.cursor.position > 0;
  metrics_->evaluation(place(), *found);
  result_.evaluations.push_back(
      {state_.step, within_epoch ? state_.cursor.epoch + 1 : state_.cursor.epoch, *found, seconds});
  // An evaluation at the end of an epoch is printed in the epoch's line.
  if (within_epoch && !complete()) progress_.line(fmt::format("step {}  {}", state_.step, to_string(*found)));
  save_results("running");
  return true;
}

void TrainingRun::checkpoint() {
  if (!all_reduce_->info().reduces) return;  // the replicas differ
  trainer_.finish();
  const TraceSpan span(timeline_.run(), "checkpoint");
  const double begun = now_seconds();
  await_checkpoint();
  activity_.enter(Activity::Phase::checkpoint);
  check_replicas(world_, model_, optimizer_, fmt::format("after step {}", state_.step));
  state_.ranks = static_cast<std::uint64_t>(world_.size());
  state_.crossover = all_reduce_->info().crossover;
  state_.buckets = trainer_.bucket_options();
  state_.loss_scaling.reset();
  if (LossScaling* scaling = device_->loss_scaling()) state_.loss_scaling = scaling->state();
  if (world_.root()) checkpoints_.begin(checkpointed());
  result_.checkpoint_seconds += now_seconds() - begun;
  checkpoint_timer_.restart();
}

// Waits on all ranks until the last checkpoint is written.
void TrainingRun::await_checkpoint() {
  activity_.enter(Activity::Phase::checkpoint);
  checkpoints_.finish();
  activity_.enter(Activity::Phase::meeting);
  world_.barrier();
}

Checkpoint TrainingRun::checkpointed() {
  Checkpoint checkpoint = snapshot(model_, optimizer_);
  checkpoint.run = state_;
  checkpoint.model = options_.model;
  checkpoint.configuration = options_.configuration;
  checkpoint.seed = options_.seed;
  checkpoint.order = order();
  checkpoint.image = training_input_.image;
  checkpoint.data = training_.info();
  checkpoint.samples = samples_;
  checkpoint.summing = summing();
  return checkpoint;
}

void TrainingRun::close_epoch(EpochResult& epoch) {
  trainer_.finish();
  activity_.enter(Activity::Phase::meeting);
  epoch.accounts += ledger_.close(world_);
  result_.accounts += epoch.accounts;
  if (epoch.gradient_norms) *epoch.gradient_norms += optimizer_.take_norms();
  epoch.skipped = bad_samples_.take_all(world_);
  epoch.seconds = epoch.accounts.mean().wall();
  epoch.train_loss /= static_cast<double>(epoch.images);
  epoch.train_accuracy /= static_cast<double>(epoch.images);
  if (state_.score) epoch.test = result_.evaluations.back().test;
}

void TrainingRun::report(const EpochResult& epoch) {
  if (state_.cursor.epoch == epoch.epoch) metrics_->epoch(place(), epoch);  // a partial epoch may be resumed
  const std::string rest = epoch.first_image > 0 ? fmt::format(" (from image {} on)", epoch.first_image) : "";
  progress_.line(fmt::format("epoch {}/{}{}  loss {:.4f}  accuracy {:.2f} %  {}rate {:.4g}  {:.0f} images/s  {:.1f} s",
                             epoch.epoch, options_.epochs, rest, epoch.train_loss, 100 * epoch.train_accuracy,
                             epoch.test ? to_string(*epoch.test) + "  " : "", epoch.rate,
                             static_cast<double>(epoch.images) / epoch.seconds, epoch.seconds));
  if (epoch.accounts.latest().share > kWorthSaying) progress_.line("  " + lateness_line(epoch.accounts));
  result_.epochs.push_back(epoch);
  save_results("running");
}

void TrainingRun::finish(const std::string& status) {
  const double begun = now_seconds();
  await_checkpoint();
  result_.checkpoint_seconds += now_seconds() - begun;
  save_results(status);
  const std::string text = timeline_.write(world_);
  if (!text.empty()) progress_.line(text);
}

void TrainingRun::save_results(const std::string& status) {
  result_.status = status;
  result_.checkpoint_write_seconds = checkpoints_.seconds();
  result_.total_seconds = now_seconds() - begun_;
  if (world_.root()) write_json(options_.out / "results.json", FileKind::run_results, to_json(result_));
}

}  // namespace annulus
