#include "src/train.h"

#include <algorithm>
#include <fstream>

#include "collectives/aligned_clock.h"
#include "kernels/clock.h"
#include "kernels/error.h"
#include "kernels/on_error.h"
#include "models/synchronize.h"
#include "models/zoo.h"
#include "src/alike.h"
#include "src/atomic_file.h"
#include "src/bad_samples.h"
#include "src/bucket_tuner.h"
#include "src/bytes.h"
#include "src/checkpoint.h"
#include "src/open_device.h"
#include "src/progress.h"
#include "src/replicas.h"
#include "src/restore.h"
#include "src/results.h"
#include "src/signals.h"
#include "src/timeline.h"
#include "src/trainer.h"
#include "src/watchdog.h"

namespace annulus {
namespace {

constexpr double kWorthSaying = 0.02;  // of a step, of a rank's lateness

Task task_of(const DatasetInfo& info, const InputPlan& input) {
  return {{input.image.height, input.image.width, input.channels}, info.mean, info.deviation, info.classes.size()};
}

Task task_of(const DatasetInfo& info, const InputPlan& input, const TrainOptions& options) {
  Task task = task_of(info, input);
  task.label_smoothing = options.label_smoothing;
  task.zero_init_last_norm = options.zero_init;
  return task;
}

UpdateRule update_rule(const TrainOptions& options) {
  if (options.optimizer == "lars") return Lars{options.momentum, options.weight_decay, options.trust};
  if (options.optimizer == "adamw")
    return AdamW{options.betas[0], options.betas[1], options.epsilon, options.weight_decay};
  return Sgd{options.momentum, options.weight_decay, options.nesterov};
}

bool begins_at_zero(const Graph& graph) {
  return std::ranges::any_of(graph.nodes(), [](const Node& node) {
    const auto* norm = std::get_if<BatchNorm>(&node.operation);
    return norm != nullptr && norm->initial_scale == 0;
  });
}

Graph graph_of(const World& world, const TrainOptions& options, const Task& task) {
  Graph graph = make_model(options.model, task);
  // A recipe's is for the models that it was published for.
  if (options.zero_init && options.recipe.empty() && !begins_at_zero(graph))
    fail("--zero-init: {} has no residual blocks; leave it out", options.model);
  if (!options.sync_batch_norm) return graph;
  Graph synchronized = synchronize_batch_norms(graph);  // which refuses the same models on any number of ranks
  return world.size() > 1 ? synchronized : graph;       // alone there is nobody to synchronize with
}

StepOptions step_options(const TrainOptions& options) {
  return {.parts = options.accumulate, .clip_norm = options.clip_norm};
}

// Ranks that synchronize in the middle of a pass must all make it, equally often. `images`: of a step.
void expect_same_passes(const World& world, const TrainOptions& options, std::size_t images) {
  const auto ranks = static_cast<std::size_t>(world.size());
  const std::size_t most = split(images, ranks, 0).size(), least = split(images, ranks, ranks - 1).size();
  const StepOptions step = step_options(options);
  if (step.parts_of(most) == step.parts_of(least) || images == 0) return;
  fail(
      "--sync-batch-norm: in steps of {} images some of {} ranks have {} and others {}, {}; choose another "
      "--global-batch",
      images, ranks, most, least,
      least == 0 ? "but each needs one" : fmt::format("which do not make {} parts alike", options.accumulate));
}

std::size_t global_batch_of(const World& world, const TrainOptions& options) {
  const auto ranks = static_cast<std::size_t>(world.size());
  const std::size_t batch = options.global_batch > 0 ? options.global_batch : options.batch * ranks;
  if (batch < ranks)
    fail("a global batch of {} cannot be shared by {} ranks: use --global-batch {} or more, or fewer ranks", batch,
         ranks, ranks);
  return batch;
}

bool takes_average(const Checkpoint& checkpoint, const EvaluateOptions& options) {
  if (options.weights == "ema" && !checkpoint.averages())
    fail("{} has no averaged weights, the run was one without --ema: evaluate it with --weights raw",
         options.checkpoint.string());
  return options.weights != "raw" && checkpoint.averages();
}

// Where a step is, in epochs: at the middle of its images.
double middle(const StepPlan& step, std::size_t size) {
  const auto images = static_cast<double>(step.positions.begin + step.positions.end) / 2;
  return static_cast<double>(step.epoch) + images / static_cast<double>(size);
}

// One run of `annulus train`: everything that it needs, in the order in which it depends on each other.
class TrainingRun {
 public:
  TrainingRun(const World& world, const TrainOptions& options);
  int run();

 private:
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
  bool steps_left() const { return options_.max_steps == 0 || step_ < options_.max_steps; }
  std::string order() const { return order_of(training_input_, training_.info()); }
  std::filesystem::path checkpoint_file() const { return options_.out / "checkpoint.h5"; }

  std::unique_ptr<AllReduce> connect() const;
  void claim_output() const;
  void plan_networks();
  void resume();
  void check_passes() const;  // that batch norm can be synchronized in every step
  void choose_buckets();
  std::string summing() const;  // what the last bits of sums depend on
  void announce() const;
  bool run_epoch();  // false where it was stopped
  void checkpoint();
  void close_epoch(EpochResult epoch);
  void save_results(const std::string& status);
  void finish(const std::string& status);

  const double begun_ = now_seconds();
  const World& world_;
  const TrainOptions& options_;
  const double clock_offset_;
  Timeline timeline_;
  Activity activity_;
  std::unique_ptr<Device> device_;
  Dataset training_, test_;
  const InputPlan training_input_, test_input_;
  std::size_t global_batch_;
  const Schedule schedule_;
  std::unique_ptr<AllReduce> all_reduce_;
  const Watchdog watchdog_;
  Model model_;
  Optimizer optimizer_;
  Ledger ledger_;
  Trainer trainer_;
  Progress progress_;
  Cursor cursor_;
  std::uint64_t step_ = 0;
  std::uint64_t tuned_for_ranks_ = 0;  // the buckets; see Checkpoint
  std::string summed_before_;          // by the run that this one resumes, where it said so
  std::unique_ptr<Loader> loader_;     // begins at cursor_
  BadSamples bad_samples_;
  RunResult result_;
  const OnError abandon_sums_{[this] { all_reduce_->abandon(); }};  // last, as freeing memory of a GPU waits for them
};

TrainingRun::TrainingRun(const World& world, const TrainOptions& options)
    : world_(world),
      options_(options),
      clock_offset_(clock_offset_to_root(world)),
      timeline_(options.timeline, clock_offset_),
      device_(open_device(world, options.device)),
      training_(data_files(options.data.files), "train"),
      test_(data_files(options.data.files), "test"),
      training_input_(plan_input(options.data, training_.info(), Purpose::training, decoding_threads(*device_))),
      test_input_(plan_input(options.data, test_.info(), Purpose::evaluation, decoding_threads(*device_))),
      global_batch_(global_batch_of(world, options)),
      schedule_(options.schedule, global_batch_, options.epochs),
      all_reduce_(connect()),
      watchdog_(activity_, all_reduce_->activity(), options.stall_seconds,
                [this] { end_stalled_job(world_, activity_, all_reduce_->activity(), options_.stall_seconds); }),
      model_(*device_, graph_of(world, options, task_of(training_.info(), training_input_, options)), Mode::training,
             largest_part(), allocate_in(*all_reduce_), [this] { activity_.tick(); }),
      optimizer_(*device_, model_.parameters(), update_rule(options), schedule_.rate(0), options.ema),
      ledger_(clock_offset_),
      trainer_(model_, *all_reduce_, optimizer_, ledger_, options.buckets, activity_, timeline_.step(),
               step_options(options)),
      progress_(world.root(), options.epochs),
      bad_samples_(world.rank()) {
  check_same_network(world, model_);
  if (!all_reduce_->sums() && options.resume)
    fail("--all-reduce none measures and does not train: it cannot go on with a run; leave out --resume");
  claim_output();
  timeline_.claim(world);
  all_reduce_->record_to(timeline_.all_reduce());
  model_.record_to(timeline_.step());
  plan_networks();
  model_.parameters().initialize(options.seed);
  optimizer_.begin_average();
  result_.buckets = to_string(trainer_.bucket_options());
  if (options.resume) resume();
  if (options.sync_batch_norm) check_passes();
  choose_buckets();
  announce();
  loader_ = std::make_unique<Loader>(training_, training_input_, wanted_batches());
  result_.ranks = world.size();
  result_.global_batch = global_batch_;
  result_.schedule = schedule_.description();
  result_.recipe = options.recipe;
  result_.device = device_->description();
  result_.all_reduce = all_reduce_->description();
  result_.measuring = !all_reduce_->sums();
}

// The first things that the ranks do together: here a difference between them would hang or corrupt.
std::unique_ptr<AllReduce> TrainingRun::connect() const {
  check_alike(world_, options_, training_, test_);
  return make_all_reduce(options_.all_reduce, world_, *device_, parse_wire(options_.wire));
}

// Everything that a run writes goes into one folder, which holds one run: an earlier one's results are never lost.
void TrainingRun::claim_output() const {
  if (!world_.root()) return;
  std::error_code error;
  std::filesystem::create_directories(options_.out, error);
  if (error) fail("cannot make the folder {}: {}", options_.out.string(), error.message());
  if (!options_.resume && std::filesystem::exists(checkpoint_file()))
    fail("{} is there already, of an earlier run: go on with it by --resume, or choose another --out",
         checkpoint_file().string());
  write_atomically(options_.out / "config.toml", std::as_bytes(std::span(options_.configuration)));
}

// All that will be needed, so that no step has to plan: an epoch's last batch is smaller, and so is evaluation's.
void TrainingRun::plan_networks() {
  const std::size_t size = training_.info().size;
  const StepOptions step = step_options(options_);
  for (const std::size_t count : {share(std::min(global_batch_, size)), share(size % global_batch_)})
    for (std::size_t number = 0; number < step.parts_of(count); ++number)
      model_.network(Mode::training, step.part(count, number).size());
}

void TrainingRun::resume() {
  activity_.enter(Activity::Phase::meeting);
  const auto restored =
      restore(world_, checkpoint_file(), {options_.model, options_.seed, order()}, model_, optimizer_);
  if (!restored) {
    progress_.line(fmt::format("nothing to resume in {}: beginning anew", options_.out.string()));
    return;
  }
  cursor_ = restored->cursor;
  step_ = restored->step;
  check_replicas(world_, model_, optimizer_, "after resuming");
  if (options_.tune_buckets && restored->tuned_for_ranks == static_cast<std::uint64_t>(world_.size()) &&
      (restored->buckets.deferred == 0 || trainer_.may_defer())) {
    tuned_for_ranks_ = restored->tuned_for_ranks;  // the same sums as before
    trainer_.cut_buckets(restored->buckets);
    result_.buckets = to_string(trainer_.bucket_options()) + ", as tuned before";
  }
  summed_before_ = restored->summing;
  if (!world_.root()) return;
  std::ifstream file(options_.out / "results.json");
  const auto earlier = nlohmann::json::parse(file, nullptr, false);
  if (earlier.is_object())
    for (const auto& epoch : earlier.value("epochs", nlohmann::json::array()))
      if (epoch.value("epoch", std::size_t{0}) <= cursor_.epoch) result_.earlier_epochs.push_back(epoch);
  progress_.line(fmt::format("resuming after {} steps: epoch {}, image {} of {}", step_, cursor_.epoch + 1,
                             cursor_.position, training_.info().size));
}

void TrainingRun::check_passes() const {
  const std::size_t size = training_.info().size;
  for (const std::size_t left : {size - cursor_.position, size})  // of the epoch that is resumed, and of others
    for (const std::size_t images : {std::min(global_batch_, left), left % global_batch_})
      expect_same_passes(world_, options_, images);
}

void TrainingRun::choose_buckets() {
  if (!options_.tune_buckets || tuned_for_ranks_ > 0) return;
  tuned_for_ranks_ = static_cast<std::uint64_t>(world_.size());
  BatchRequest trial = wanted_batches();
  trial.end_epoch = cursor_.epoch + 1;  // also of a run that is complete
  Loader loader(training_, training_input_, trial);
  result_.buckets = to_string(tune_buckets(world_, trainer_, loader.next()));
}

std::string TrainingRun::summing() const {
  const std::string parts = options_.accumulate > 1 ? fmt::format(", {} parts", options_.accumulate) : "";
  if (world_.size() == 1) return "one rank" + parts;
  return fmt::format("{} ranks, {}, buckets of {}{}", world_.size(), all_reduce_->algorithm(),
                     format_bytes(trainer_.bucket_options().bytes), parts);
}

void TrainingRun::announce() const {
  const std::string warning = device_warning(world_, *device_);
  if (!world_.root()) return;
  const DatasetInfo& data = training_.info();
  fmt::print("annulus {}: {} on {} rank{}, {}\n", ANNULUS_VERSION, options_.model, world_.size(),
             world_.size() == 1 ? "" : "s", device_->description());
  fmt::print("  data        {}: {} training and {} test images{}, {} classes\n", name_of(options_.data), data.size,
             test_.info().size,
             data.encoded() ? "" : fmt::format(" of {}x{}x{}", data.height, data.width, data.channels),
             data.classes.size());
  fmt::print("  input       {}\n", to_string(training_input_));
  fmt::print("  parameters  {}, gradients {} in {} bucket{} of up to {}\n", model_.parameters().count(),
             format_bytes(model_.parameters().gradients().bytes), trainer_.buckets().size(),
             trainer_.buckets().size() == 1 ? "" : "s", result_.buckets);
  fmt::print("  all-reduce  {}\n", all_reduce_->description());
  if (!summed_before_.empty() && summed_before_ != summing())
    fmt::print("  note        sums may round otherwise than before the checkpoint, which had {}\n", summed_before_);
  if (!warning.empty()) fmt::print("  warning     {}\n", warning);
  if (!all_reduce_->sums())
    fmt::print(
        "  warning     this measures and does not train: the replicas drift apart and are not compared, no checkpoint "
        "is written, a signal ends the run at once, and loss and accuracy mean nothing\n");
  if (!options_.recipe.empty()) fmt::print("  recipe      {}\n", options_.recipe);
  const std::size_t parts = step_options(options_).parts_of(share(global_batch_));
  fmt::print("  step        global batch {} ({} on rank 0{}), the loss is the mean over it\n", global_batch_,
             share(global_batch_), parts > 1 ? fmt::format(", in {} parts", parts) : "");
  fmt::print("  rate        {}\n", schedule_.description());
  if (options_.ema > 0) fmt::print("  weights     evaluated is their moving average, of decay {}\n", options_.ema);
  fmt::print("  writes to   {}\n", options_.out.string());
  fmt::print("configuration (also in {}):\n", (options_.out / "config.toml").string());
  fmt::print("{}", options_.configuration);
  std::fflush(stdout);
}

int TrainingRun::run() {
  // Ranks that exchange nothing could not agree on the step to stop at. They leave nothing to go on from either.
  if (all_reduce_->sums()) watch_for_stop_signals();
  result_.startup_seconds = now_seconds() - begun_;
  while (cursor_.epoch < options_.epochs && steps_left())
    if (!run_epoch()) {
      finish("stopped");
      progress_.line(fmt::format("stopped after {} steps, as asked; go on with the same command and --resume", step_));
      return kStoppedExitCode;
    }
  finish("complete");
  if (world_.root()) fmt::print("\n{}", summary(result_));
  return 0;
}

bool TrainingRun::run_epoch() {
  EpochResult epoch;
  epoch.epoch = cursor_.epoch + 1;
  const TraceSpan span(timeline_.run(), "epoch", static_cast<std::int64_t>(epoch.epoch));
  progress_.begin_epoch(epoch.epoch, training_.info().size);
  bool last = false;
  bool stopped = false;
  while (!last && !stopped && steps_left()) {
    timeline_.begin_step(step_ + 1);
    const Mark begun = device_->mark();
    activity_.begin_step(step_ + 1);
    inject(options_.faults, world_.rank(), step_ + 1, model_);
    const Batch& batch = loader_->next();
    epoch.rate = schedule_.rate(middle(batch.step, training_.info().size));
    optimizer_.set_rate(epoch.rate);
    bad_samples_.add(batch);
    StepMetrics metrics;
    try {
      metrics = trainer_.step(batch, stop_requested() ? 1.0f : 0.0f, begun);
    } catch (const Error& error) {
      fail("step {} (epoch {}): {}", step_ + 1, epoch.epoch, error.what());
    }
    ++step_;
    ++epoch.steps;
    const std::size_t count = batch.step.global_batch();
    epoch.images += count;
    epoch.train_loss += metrics.loss * static_cast<double>(count);
    epoch.train_accuracy += metrics.accuracy * static_cast<double>(count);
    cursor_ = after(batch.step);
    last = batch.step.last_of_epoch;
    stopped = metrics.votes > 0;
    progress_.update(batch.step.positions.end, metrics.loss);
    const bool due = options_.checkpoint_every > 0 && step_ % options_.checkpoint_every == 0;
    if (stopped || last || due || !steps_left()) checkpoint();
  }
  trainer_.finish();
  activity_.enter(Activity::Phase::meeting);
  epoch.accounts = ledger_.close(world_);
  result_.accounts += epoch.accounts;
  if (options_.clip_norm > 0) epoch.gradient_norms = optimizer_.take_norms();
  epoch.skipped = bad_samples_.take_all(world_);
  epoch.seconds = epoch.accounts.mean().wall();
  epoch.train_loss /= static_cast<double>(epoch.images);
  epoch.train_accuracy /= static_cast<double>(epoch.images);
  // A stop that comes with the last step finds the run complete.
  const bool complete = last && cursor_.epoch == options_.epochs;
  if (stopped && !complete) return false;
  close_epoch(epoch);
  return true;
}

void TrainingRun::checkpoint() {
  if (!all_reduce_->sums()) return;  // replicas that differ are nobody's state
  trainer_.finish();
  const TraceSpan span(timeline_.run(), "checkpoint");
  const double begun = now_seconds();
  activity_.enter(Activity::Phase::checkpoint);
  check_replicas(world_, model_, optimizer_, fmt::format("after step {}", step_));
  if (world_.root()) {
    Checkpoint saved = snapshot(model_, optimizer_);
    saved.model = options_.model;
    saved.configuration = options_.configuration;
    saved.seed = options_.seed;
    saved.step = step_;
    saved.cursor = cursor_;
    saved.order = order();
    saved.image = training_input_.image;
    saved.summing = summing();
    saved.buckets = trainer_.bucket_options();
    saved.tuned_for_ranks = tuned_for_ranks_;
    activity_.tick();
    write_checkpoint(checkpoint_file(), saved);
  }
  activity_.enter(Activity::Phase::meeting);
  world_.barrier();  // nobody runs ahead of a checkpoint that may yet fail
  result_.checkpoint_seconds += now_seconds() - begun;
}

void TrainingRun::close_epoch(EpochResult epoch) {
  const double begun = now_seconds();
  {
    const TraceSpan span(timeline_.run(), "evaluation");
    optimizer_.exchange_average();
    epoch.test = evaluate(world_, model_, test_, test_input_, largest_part() * static_cast<std::size_t>(world_.size()),
                          activity_);
    optimizer_.exchange_average();
  }
  result_.evaluation_seconds += now_seconds() - begun;
  progress_.line(fmt::format(
      "epoch {}/{}  loss {:.4f}  accuracy {:.2f} %  test loss {:.4f}  test accuracy {:.2f} %  "
      "rate {:.4g}  {:.0f} images/s  {:.1f} s",
      epoch.epoch, options_.epochs, epoch.train_loss, 100 * epoch.train_accuracy, epoch.test.loss,
      100 * epoch.test.accuracy(), epoch.rate, static_cast<double>(epoch.images) / epoch.seconds, epoch.seconds));
  if (epoch.accounts.latest().share > kWorthSaying) progress_.line("  " + lateness_line(epoch.accounts));
  result_.epochs.push_back(epoch);
  save_results("running");
}

void TrainingRun::finish(const std::string& status) {
  save_results(status);
  activity_.enter(Activity::Phase::meeting);
  const std::string text = timeline_.write(world_);
  if (!text.empty()) progress_.line(text);
}

void TrainingRun::save_results(const std::string& status) {
  result_.status = status;
  result_.total_seconds = now_seconds() - begun_;
  if (world_.root()) write_json(options_.out / "results.json", to_json(result_));
}

}  // namespace

int train(const World& world, const TrainOptions& options) {
  check_same_command(world, "train");
  return TrainingRun(world, options).run();
}

void evaluate(const World& world, const EvaluateOptions& options) {
  check_same_command(world, "eval");
  const auto device = open_device(world, options.device);
  const Dataset dataset(data_files(options.data.files), options.split);
  const Checkpoint checkpoint = read_checkpoint(options.checkpoint);
  const InputPlan input =
      plan_input(options.data, dataset.info(), Purpose::evaluation, decoding_threads(*device), checkpoint.image);
  Model model(*device, make_model(checkpoint.model, task_of(dataset.info(), input)), Mode::inference, options.batch);
  const bool averaged = takes_average(checkpoint, options);
  restore_parameters(checkpoint, options.checkpoint, model, averaged);
  check_alike(world, options, dataset, checkpoint);
  Activity activity;
  const Evaluation found =
      evaluate(world, model, dataset, input, options.batch * static_cast<std::size_t>(world.size()), activity);
  if (!world.root()) return;
  fmt::print("{} after {} steps{} on {} ({}): accuracy {:.2f} %, loss {:.4f}, {} of {} images\n", checkpoint.model,
             checkpoint.step, averaged ? ", averaged weights," : "", name_of(options.data), options.split,
             100 * found.accuracy(), found.loss, found.correct, found.count);
  if (found.skipped > 0) fmt::print("{} bad images were skipped\n", found.skipped);
  if (!options.json.empty())
    write_json(options.json, {{"accuracy", found.accuracy()},
                              {"loss", found.loss},
                              {"correct", found.correct},
                              {"count", found.count},
                              {"skipped", found.skipped},
                              {"model", checkpoint.model},
                              {"weights", averaged ? "ema" : "raw"},
                              {"step", checkpoint.step}});
}

}  // namespace annulus
