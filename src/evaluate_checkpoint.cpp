#include "src/evaluate_checkpoint.h"

#include "kernels/error.h"
#include "src/alike.h"
#include "src/checkpoint_folder.h"
#include "src/evaluate.h"
#include "src/open_device.h"
#include "src/printable.h"
#include "src/restore.h"
#include "src/results.h"
#include "src/trained_network.h"
#include "src/training_setup.h"

namespace annulus {
namespace {

// With the mean and deviation that the network was trained with, whatever this data has; old checkpoints do not say.
DatasetInfo as_trained(DatasetInfo info, const Checkpoint& checkpoint) {
  if (checkpoint.data.mean.size() != info.channels) return info;
  info.mean = checkpoint.data.mean;
  info.deviation = checkpoint.data.deviation;
  return info;
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
  const InputPlan input =
      plan_input(options.data, dataset.info(), Purpose::evaluation, decoding_threads(*device), checkpoint.image);
  activity.enter(Activity::Phase::planning);
  Model model(*device, make_model(checkpoint.model, task_of(as_trained(dataset.info(), checkpoint), input)),
              Mode::inference, options.batch, {}, [&activity] { activity.tick(); });
  const bool averaged = takes_average(checkpoint, stored.file, options.weights);
  restore_parameters(checkpoint, stored.file, model, averaged);
  activity.enter(Activity::Phase::comparing);
  check_alike(world, options, dataset, checkpoint);
  const std::size_t global_batch = options.batch * static_cast<std::size_t>(world.size());
  const Evaluation found = evaluate(world, model, dataset, input, {.global_batch = global_batch}, activity).value();
  activity.enter(Activity::Phase::ending);
  if (!world.root()) return;
  for (const std::string& line : stored.damaged) fmt::print("{}\n", printable(line));
  fmt::print("{} after {} steps{} on {} ({}): accuracy {:.2f} %, loss {:.4f}{}, {} of {} images\n",
             printable(checkpoint.model), checkpoint.step, averaged ? ", averaged weights," : "",
             printable(name_of(options.data)), options.split, 100 * found.accuracy(), found.loss,
             found.top5 ? fmt::format(", top-5 {:.2f} %", 100 * found.share(*found.top5)) : "", found.correct,
             found.count);
  if (found.skipped > 0) fmt::print("{} bad images were skipped\n", found.skipped);
  if (options.json.empty()) return;
  nlohmann::json json{{"accuracy", found.accuracy()},
                      {"loss", found.loss},
                      {"correct", found.correct},
                      {"count", found.count},
                      {"skipped", found.skipped},
                      {"model", checkpoint.model},
                      {"weights", averaged ? "ema" : "raw"},
                      {"step", checkpoint.step},
                      {"checkpoint", stored.file.string()}};
  if (found.top5) json["top5"] = found.share(*found.top5);
  write_json(options.json, FileKind::evaluation, json);
}

}  // namespace annulus
