#include "src/apply/evaluate_checkpoint.h"

#include <utility>

#include "src/apply/trained_network.h"
#include "src/checkpoint/checkpoint_folder.h"
#include "src/checkpoint/restore.h"
#include "src/data/dataset.h"
#include "src/data/open_samples.h"
#include "src/io/printable.h"
#include "src/io/progress.h"
#include "src/io/terminal.h"
#include "src/job/consistency.h"
#include "src/job/open_device.h"
#include "src/metrics/results.h"
#include "src/onnx/network_file.h"
#include "src/step/choose_decoder.h"
#include "src/step/evaluate.h"
#include "src/train/training_setup.h"

namespace annulus {
namespace {

DatasetInfo with_normalization_of(const CheckpointHeader& checkpoint, DatasetInfo info) {
  info.mean = checkpoint.data.mean;
  info.stddev = checkpoint.data.stddev;
  return info;
}

void check_consistent(const World& world, const EvaluateOptions& options, const Samples& dataset,
                      const CheckpointHeader& checkpoint) {
  Agreement agreement(world);
  agreement.add("--split", options.split);
  agreement.add("--weights", options.weights);
  agreement.add("--batch", options.batch);
  agreement.add("--per-class", options.per_class);
  agreement.add("--views", options.data.views);
  agreement.add("the checkpoint", description(checkpoint));
  agreement.add("--data-changed", options.data_changed);
  for (const DataField& field : data_fields(dataset.info(), sample_fields("evaluated", dataset)))
    agreement.add(field.name, field.value);
  agreement.check();
}

// A line for each class. `counts`: a ConfusionMatrix or ClassCounts.
template <class Counts>
std::string class_table(const Counts& counts, const std::vector<std::string>& classes) {
  const auto percent = [](const std::optional<double>& share) {
    return share ? fmt::format("{:.2f} %", 100 * *share) : "-";
  };
  std::string text = fmt::format("{:>10} {:>11} {:>11} {:>11}  class\n", "images", "precision", "recall", "F1");
  for (std::size_t label = 0; label < classes.size(); ++label) {
    const ClassResult result = counts.result(label);
    text += fmt::format("{:>10} {:>11} {:>11} {:>11}  {}\n", result.images, percent(result.precision()),
                        percent(result.recall()), percent(result.f1()), printable(classes[label]));
  }
  return text;
}

// The most frequent confusions.
std::string confusion_table(const ConfusionMatrix& confusion, const std::vector<std::string>& classes) {
  constexpr std::size_t kMost = 10;
  std::string text;
  for (const auto& [label, predicted, count] : confusion.confusions(kMost))
    text +=
        fmt::format("{:>10} of {} classified as {}\n", count, printable(classes[label]), printable(classes[predicted]));
  return text;
}

template <class Counts>
void add_classes(const Counts& counts, const std::vector<std::string>& classes, nlohmann::json& json) {
  const auto number = [](const std::optional<double>& share) {
    return share ? nlohmann::json(*share) : nlohmann::json();
  };
  for (std::size_t label = 0; label < classes.size(); ++label) {
    const ClassResult result = counts.result(label);
    json["classes"].push_back({{"class", classes[label]},
                               {"images", result.images},
                               {"precision", number(result.precision())},
                               {"recall", number(result.recall())},
                               {"f1", number(result.f1())}});
  }
}

void add_confusions(const ConfusionMatrix& confusion, nlohmann::json& json) {
  for (std::size_t label = 0; label < confusion.classes(); ++label) {
    nlohmann::json row = nlohmann::json::array();
    for (std::size_t predicted = 0; predicted < confusion.classes(); ++predicted)
      row.push_back(confusion.count(label, predicted));
    json["confusion"].push_back(row);
  }
}

// A matrix for many classes would not fit into memory.
void expect_classes(const EvaluateOptions& options, const DatasetInfo& info) {
  constexpr std::size_t kMostClasses = 10000;
  if (options.per_class && info.labels == LabelKind::values)
    fail("--per-class: there are no classes, because the labels are {}; remove the option", description(info.labels));
  if (options.per_class && info.classes.size() > kMostClasses)
    fail("--per-class: {} classes, but at most {} are supported; remove the option", info.classes.size(), kMostClasses);
}

Graph network_of(const CheckpointHeader& checkpoint, const DatasetInfo& data, const InputPlan& input) {
  return make_network(checkpoint.model, checkpoint.onnx,
                      task_of(with_normalization_of(checkpoint, data), input, checkpoint.loss));
}

void print(const EvaluateOptions& options, const CheckpointHeader& checkpoint, bool averaged, const DatasetInfo& data,
           const Evaluation& found) {
  fmt::print("{} after {} steps{} on {} ({}): {}, {}\n", printable(checkpoint.model), checkpoint.run.step,
             averaged ? ", averaged weights," : "", printable(name_of(options.data)), options.split,
             emphasized(stdout, Emphasis::headline, headline(found.score)), details(found.score));
  if (found.skipped > 0) fmt::print("{} bad {} were skipped\n", found.skipped, data.is_text() ? "windows" : "images");
  if (options.per_class && found.class_counts) fmt::print("{}", class_table(*found.class_counts, data.classes));
  if (found.confusion)
    fmt::print("{}{}", class_table(*found.confusion, data.classes), confusion_table(*found.confusion, data.classes));
  std::fflush(stdout);
}

}  // namespace

CheckpointEvaluator::CheckpointEvaluator(const World& world, const EvaluateOptions& options, const CheckpointFile& file,
                                         Activity& activity)
    : world_(world),
      options_(options),
      activity_(activity),
      device_(open_device(world, options.device)),
      samples_(open_samples(data_files(options.data.files), options.split,
                            options.data.length > 0 ? options.data.length : file.header().data.length,
                            is_masked(file.header().loss))),
      note_(expect_fitting_data(file, samples_->info(), name_of(options.data), options.data_changed)),
      input_(plan_input(options.data, samples_->info(), Purpose::evaluation, decoding_threads(world, *device_),
                        file.header().image)),
      model_(*device_, network_of(file.header(), samples_->info(), input_), Mode::inference, options.batch, {},
             [&activity] { activity.tick(); }) {
  expect_classes(options, samples_->info());
  const BatchRequest trial{.global_batch = options.batch * static_cast<std::size_t>(world.size()),
                           .rank = world.rank(),
                           .ranks = world.size(),
                           .start = {}};
  set_decoder(world, *device_, *samples_, input_, trial, options.data.decode, file.header().run.gpu_decodes);
}

nlohmann::json CheckpointEvaluator::evaluate(const CheckpointFile& file) {
  const CheckpointHeader& checkpoint = file.header();
  const bool averaged = takes_average(file, options_.weights);
  restore_parameters(file, model_, averaged);
  activity_.enter(Activity::Phase::comparing);
  check_consistent(world_, options_, *samples_, checkpoint);
  const DatasetInfo& data = samples_->info();
  Meter meter(world_.root(), Meter::Style::bar);
  meter.begin();
  const SampleUnit unit(data.length);
  const EvaluationPlan plan{
      .split = options_.split,
      .unit = options_.batch,
      .confusion = options_.per_class,
      .progress = [&](std::size_t done) { meter.show_samples("evaluating", done, data.size, unit); }};
  const Evaluation found = annulus::evaluate(world_, world_, model_, *samples_, input_, plan, activity_).value();
  meter.clear();
  activity_.enter(Activity::Phase::ending);
  if (!world_.root()) return {};
  if (const std::string note = std::exchange(note_, {}); !note.empty()) fmt::print("{}\n", note);
  print(options_, checkpoint, averaged, data, found);
  nlohmann::json json = to_json(found.score);
  json.update({{"skipped", found.skipped},
               {"model", checkpoint.model},
               {"weights", averaged ? "ema" : "raw"},
               {"step", checkpoint.run.step},
               {"checkpoint", file.path().string()}});
  if (options_.per_class && found.class_counts) add_classes(*found.class_counts, data.classes, json);
  if (found.confusion) {
    add_classes(*found.confusion, data.classes, json);
    add_confusions(*found.confusion, json);
  }
  return json;
}

void evaluate(const World& world, const EvaluateOptions& options, Activity& activity) {
  activity.enter(Activity::Phase::comparing);
  check_same_command(world, "eval");
  activity.enter(Activity::Phase::opening);
  const StoredCheckpoint stored = find_checkpoint(options.checkpoint);
  expect_usable(stored.file);
  CheckpointEvaluator evaluator(world, options, stored.file, activity);
  if (world.root())
    for (const std::string& line : stored.damaged) fmt::print("{}\n", printable(line));
  const nlohmann::json json = evaluator.evaluate(stored.file);
  if (world.root() && !options.json.empty()) write_json(options.json, FileKind::evaluation, json);
}

}  // namespace annulus
