#include "src/apply/evaluate_checkpoint.h"

#include "src/apply/trained_network.h"
#include "src/checkpoint/checkpoint_folder.h"
#include "src/checkpoint/restore.h"
#include "src/io/printable.h"
#include "src/io/progress.h"
#include "src/io/terminal.h"
#include "src/job/consistency.h"
#include "src/job/open_device.h"
#include "src/metrics/results.h"
#include "src/onnx/network_file.h"
#include "src/step/evaluate.h"
#include "src/train/training_setup.h"

namespace annulus {
namespace {

DatasetInfo with_normalization_of(const Checkpoint& checkpoint, DatasetInfo info) {
  info.mean = checkpoint.data.mean;
  info.stddev = checkpoint.data.stddev;
  return info;
}

void check_consistent(const World& world, const EvaluateOptions& options, const Dataset& dataset,
                      const Checkpoint& checkpoint) {
  Agreement agreement(world);
  agreement.add("--split", options.split);
  agreement.add("--weights", options.weights);
  agreement.add("--batch", options.batch);
  agreement.add("the checkpoint", description(checkpoint));
  agreement.add("--data-changed", options.data_changed);
  for (const DataField& field : data_fields(dataset.info(), sample_fields("evaluated", dataset)))
    agreement.add(field.name, field.value);
  agreement.check();
}

}  // namespace

void evaluate(const World& world, const EvaluateOptions& options, Activity& activity) {
  activity.enter(Activity::Phase::comparing);
  check_same_command(world, "eval");
  activity.enter(Activity::Phase::opening);
  const auto device = open_device(world, options.device);
  const Dataset dataset(data_files(options.data.files), options.split);
  const StoredCheckpoint stored = find_checkpoint(options.checkpoint);
  const Checkpoint& checkpoint = stored.checkpoint;
  expect_usable(checkpoint, stored.file);
  const std::string note =
      expect_fitting_data(checkpoint, stored.file, dataset.info(), name_of(options.data), options.data_changed);
  const InputPlan input =
      plan_input(options.data, dataset.info(), Purpose::evaluation, decoding_threads(*device), checkpoint.image);
  activity.enter(Activity::Phase::planning);
  Model model(*device,
              make_network(checkpoint.model, checkpoint.onnx,
                           task_of(with_normalization_of(checkpoint, dataset.info()), input)),
              Mode::inference, options.batch, {}, [&activity] { activity.tick(); });
  const bool averaged = takes_average(checkpoint, stored.file, options.weights);
  restore_parameters(checkpoint, stored.file, model, averaged);
  activity.enter(Activity::Phase::comparing);
  check_consistent(world, options, dataset, checkpoint);
  const std::size_t global_batch = options.batch * static_cast<std::size_t>(world.size());
  Meter meter(world.root(), Meter::Style::bar);
  meter.begin();
  const auto show = [&](std::size_t images) { meter.show_images("evaluating", images, dataset.info().size); };
  const EvaluationPlan plan{.split = options.split, .global_batch = global_batch, .progress = show};
  const Evaluation found = evaluate(world, model, dataset, input, plan, activity).value();
  meter.clear();
  activity.enter(Activity::Phase::ending);
  if (!world.root()) return;
  for (const std::string& line : stored.damaged) fmt::print("{}\n", printable(line));
  if (!note.empty()) fmt::print("{}\n", note);
  fmt::print(
      "{} after {} steps{} on {} ({}): {}, loss {:.4f}{}, {} of {} images\n", printable(checkpoint.model),
      checkpoint.run.step, averaged ? ", averaged weights," : "", printable(name_of(options.data)), options.split,
      emphasized(stdout, Emphasis::headline, fmt::format("accuracy {:.2f} %", 100 * found.accuracy())), found.loss,
      found.top5 ? fmt::format(", top-5 {:.2f} %", 100 * found.share(*found.top5)) : "", found.correct, found.count);
  if (found.skipped > 0) fmt::print("{} bad images were skipped\n", found.skipped);
  if (options.json.empty()) return;
  nlohmann::json json{{"accuracy", found.accuracy()},
                      {"loss", found.loss},
                      {"correct", found.correct},
                      {"count", found.count},
                      {"skipped", found.skipped},
                      {"model", checkpoint.model},
                      {"weights", averaged ? "ema" : "raw"},
                      {"step", checkpoint.run.step},
                      {"checkpoint", stored.file.string()}};
  if (found.top5) json["top5"] = found.share(*found.top5);
  write_json(options.json, FileKind::evaluation, json);
}

}  // namespace annulus
