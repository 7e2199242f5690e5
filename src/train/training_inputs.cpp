#include "src/train/training_inputs.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "kernels/base/error.h"
#include "src/data/dataset.h"
#include "src/data/open_samples.h"
#include "src/job/open_device.h"
#include "src/step/choose_decoder.h"
#include "src/train/combinations.h"
#include "src/train/training_setup.h"

namespace annulus {
namespace {

using Files = std::vector<std::filesystem::path>;

// Opens a split for evaluation with the network that `training` has. `decoding`: threads. Throws Error if its samples
// do not fit.
EvaluatedSplit open_split(const std::string& name, const Files& files, const std::string& split,
                          const TrainOptions& options, std::size_t decoding, const Samples& training,
                          const ImageSize& image) {
  std::unique_ptr<const Samples> samples = open_samples(files, split, training.info().length, is_masked(options.loss));
  const DatasetInfo &info = samples->info(), &trained = training.info();
  if (info.vocabulary != trained.vocabulary || info.tokenizer != trained.tokenizer)
    fail("{}: {} text of another tokenizer than the training text: give data of the same kind", files.front().string(),
         name);
  if (info.labels != trained.labels || info.classes != trained.classes || info.channels != trained.channels)
    fail("{}: {} images of other {} than the training images: give data of the same kind", files.front().string(), name,
         info.channels != trained.channels                                      ? "channels"
         : info.labels != trained.labels || trained.labels == LabelKind::values ? "labels"
                                                                                : "classes");
  InputPlan plan = plan_input(options.data, info, Purpose::evaluation, decoding, image);
  return {name, std::move(samples), std::move(plan)};
}

// The split of the files of --validation: these hold images for evaluation, whatever their split is called.
std::string validation_split(const Files& files) {
  for (const std::string split : {"validation", "test"})
    if (has_split(files, split)) return split;
  return "train";
}

std::optional<EvaluatedSplit> open_evaluated(const TrainOptions& options, std::size_t decoding, const Samples& training,
                                             const ImageSize& image) {
  const Files files = data_files(options.data.files), others = data_files(options.data.validation);
  for (const std::filesystem::path& file : others)
    if (std::ranges::find(files, file) != files.end())
      fail("--validation {}: also a file of --data, whose validation split is used without this option", file.string());
  if (!others.empty())
    return open_split("validation", others, validation_split(others), options, decoding, training, image);
  for (const std::string split : {"validation", "test"})
    if (has_split(files, split)) return open_split(split, files, split, options, decoding, training, image);
  return std::nullopt;
}

EvaluatedSplits plan_evaluation(const TrainOptions& options, std::size_t decoding, const Samples& training,
                                const ImageSize& image) {
  EvaluatedSplits plan;
  if (!options.evaluate_every) {
    plan.absence = "--eval-every none";
    return plan;
  }
  const Files files = data_files(options.data.files);
  const std::string remedy = "import again with --hold-out 0.1, or give another data file with --validation FILE";
  plan.during = open_evaluated(options, decoding, training, image);
  if (!plan.during) {
    if (const std::string need = need_of_evaluation(options); !need.empty())
      fail("{}: has no validation or test samples, which {} needs: {}", files.front().string(), need, remedy);
    plan.absence = fmt::format("{} has no validation or test samples; {}", files.front().string(), remedy);
    return plan;
  }
  plan.every = *options.evaluate_every;
  if (plan.during->name != "test" && has_split(files, "test"))
    plan.test = open_split("test", files, "test", options, decoding, training, image);
  return plan;
}

std::vector<DataField> samples_of(const Samples& training, const EvaluatedSplits& evaluation) {
  std::vector<DataField> fields = sample_fields("training", training);
  if (evaluation.during)
    fields.push_back({training.info().is_text() ? "the text that is evaluated" : "the images that are evaluated",
                      evaluation.during->name});
  for (const EvaluatedSplit* split : evaluation.splits())
    std::ranges::move(sample_fields(split->name, *split->samples), std::back_inserter(fields));
  return fields;
}

InputPlan plan_training(const TrainingInputs& inputs) {
  const DatasetInfo& info = inputs.training->info();
  const TrainOptions& options = inputs.options;
  const bool scaled = info.encoded() && options.data.image == 0;
  return plan_input(options.data, info, Purpose::training, decoding_threads(inputs.world, *inputs.device),
                    scaled ? network_image_size(inputs.replicas(), options, inputs.checkpoints()) : ImageSize{});
}

// Throws Error if an evaluation of such data does not measure what --best-by and --until name.
void expect_measures(const TrainOptions& options, const DatasetInfo& info) {
  const std::vector<Measure> measured = measures_of(info);
  const auto expect = [&](Measure used) {
    if (std::ranges::find(measured, used) != measured.end()) return;
    if (used == Measure::top5 && info.labels == LabelKind::one_class)
      fail("--best-by and --until: top5 requires more than 5 classes, and the data has {}", info.classes.size());
    std::vector<std::string> names;
    for (const Measure measure : measured) names.push_back(to_string(measure));
    fail("--best-by and --until: {} is not measured for labels that are {}: use {}", to_string(used),
         description(info.labels), fmt::join(names, " or "));
  };
  if (options.best_by) expect(*options.best_by);
  if (options.until) expect(options.until->measure);
}

}  // namespace

std::vector<const EvaluatedSplit*> EvaluatedSplits::splits() const {
  std::vector<const EvaluatedSplit*> all;
  for (const auto* split : {&during, &test})
    if (*split) all.push_back(&**split);
  return all;
}

TrainingInputs::TrainingInputs(const World& world_, const TrainOptions& options_, StartUp& start_up)
    : world(world_),
      options(options_),
      pipeline(stages_of(options.strategy) > 1 ? std::make_optional<PipelineRanks>(world, stages_of(options.strategy))
                                               : std::nullopt),
      device(start_up.mark(StartUp::device, open_device(world, options.device))),
      training(open_samples(data_files(options.data.files), "train", options.data.length, is_masked(options.loss))),
      training_plan(plan_training(*this)),
      task(start_up.mark(StartUp::data, task_of(*training, training_plan, options))),
      network(start_up.mark(StartUp::network, open_network(replicas(), options, task, checkpoints()))),
      evaluation(plan_evaluation(options, decoding_threads(world, *device), *training, training_plan.image)),
      global_batch(global_batch_of(replicas(), options)),
      schedule(options.schedule, global_batch, options.epochs),
      samples(samples_of(*training, evaluation)) {
  expect_measures(options, training->info());
  start_up.mark(StartUp::data);
}

std::string TrainingInputs::choose_decoder(std::optional<bool> earlier) {
  const BatchRequest trial{.seed = options.seed,
                           .global_batch = global_batch,
                           .rank = replicas().rank(),
                           .ranks = static_cast<int>(workers()),
                           .start = {}};
  const DecoderChoice choice =
      annulus::choose_decoder(world, *device, *training, training_plan, trial, options.data.decode, earlier);
  training_plan.make_decoder = choice.make;
  for (auto* split : {&evaluation.during, &evaluation.test})
    if (*split) (*split)->plan.make_decoder = choice.make;
  return choice.report;
}

std::size_t TrainingInputs::share(std::size_t images) const {
  const StrategyPlan plan = strategy_plan();
  return StepPlan{0, {0, images}, false, {}, plan.round.piece_size}
      .share(replicas().rank(), static_cast<int>(workers()), options.shards, plan.unit)
      .size();
}

std::size_t TrainingInputs::workers() const {
  return workers_of(replicas(), options);
}

std::size_t TrainingInputs::shards() const {
  return options.shards > 0 ? options.shards : workers();
}

std::size_t TrainingInputs::largest_pass() const {
  const std::size_t images = std::min(global_batch, training->info().size);
  if (const std::size_t part = strategy_plan().largest_part; part > 0) return std::min(part, images);
  const std::size_t largest = std::max<std::size_t>(split(images, shards(), 0).size(), 1);
  return options.shards > 0 ? largest : split(largest, std::min(options.accumulate, largest), 0).size();
}

BatchRequest TrainingInputs::batches_from(const Cursor& start) const {
  const StrategyPlan plan = strategy_plan();
  return {options.seed,   step_size(),    replicas().rank(),  static_cast<int>(workers()),
          start,          options.epochs, world.local_rank(), world.local_size(),
          options.shards, plan.unit,      plan.round};
}

std::string TrainingInputs::sample_order() const {
  return order_of(training_plan, training->info());
}

std::string TrainingInputs::early_end(const RunState& state) const {
  if (options.until && state.score && options.until->reached(*state.score))
    return fmt::format("--until {}", to_string(*options.until));
  if (options.patience > 0 && state.evaluations_since_best >= options.patience)
    return fmt::format("--patience {}", options.patience);
  if (options.max_steps > 0 && state.step >= options.max_steps && state.cursor.epoch < options.epochs)
    return fmt::format("--max-steps {}", options.max_steps);
  return "";
}

bool TrainingInputs::complete(const RunState& state) const {
  return state.cursor.epoch >= options.epochs || !early_end(state).empty();
}

bool TrainingInputs::owes_evaluation(const RunState& state) const {
  return evaluation.during && complete(state) && !state.score;
}

}  // namespace annulus
