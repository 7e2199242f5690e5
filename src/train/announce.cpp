#include "src/train/announce.h"

#include <fmt/chrono.h>
#include <fmt/ranges.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "models/graph/cost.h"
#include "src/io/bytes.h"
#include "src/io/printable.h"
#include "src/io/standard_output.h"
#include "src/io/terminal.h"
#include "src/job/batch_job.h"
#include "src/job/foreign_launcher.h"
#include "src/job/machine.h"
#include "src/job/open_device.h"
#include "src/job/threads.h"
#include "src/step/verifier.h"

namespace annulus {

namespace {

// "2026-11-28T02:00:00Z on node7, Slurm job 123_4, restart 1": identifies a job in a log that several jobs write.
std::string start() {
  const std::string job = batch_job([](const char* name) { return std::getenv(name); });
  return fmt::format("{:%FT%T}Z on {}{}{}", std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now()),
                     host_name(), job.empty() ? "" : ", ", printable(job));
}

// "54000 training, 6000 validation and 10000 test"
std::string splits(const TrainingInputs& inputs) {
  std::vector<std::string> parts{fmt::format("{} training", inputs.training->info().size)};
  for (const EvaluatedSplit* split : inputs.evaluation.splits())
    parts.push_back(fmt::format("{} {}", split->samples->info().size, split->name));
  const std::string last = parts.back();
  parts.pop_back();
  return parts.empty() ? last : fmt::format("{} and {}", fmt::join(parts, ", "), last);
}

}  // namespace

void announce(const TrainingInputs& inputs, const Replica& replica, const RunRecord& record,
              const std::string& summation_before) {
  const World& world = inputs.world;
  const TrainOptions& options = inputs.options;
  const Device& device = *inputs.device;
  record.activity.enter(Activity::Phase::meeting);
  const std::string warning = device_warning(world, device);
  const ThreadReport threads = report_threads(world, choose_threads(world, options.device.threads));
  if (!world.root()) return;
  const DatasetInfo& data = inputs.training->info();
  const std::string mark = emphasized(stdout, Emphasis::warning, "warning");
  fmt::print("annulus {}: {} on {} rank{}, {}\n", ANNULUS_VERSION, options.model, world.size(),
             world.size() == 1 ? "" : "s", device.info().description);
  if (!is_terminal(stdout)) fmt::print("  started     {}\n", start());
  if (device.info().shares_host_memory) {
    fmt::print("  threads     {}\n", threads.text);
    if (!threads.warning.empty()) print_anyway(fmt::format("  {}     {}", mark, threads.warning));
  }
  const std::string each =
      data.is_text()   ? fmt::format("{} of {} tokens", data.predicts_tokens() ? "windows" : "texts", data.length)
      : data.encoded() ? "images"
                       : fmt::format("images of {}x{}x{}", data.height, data.width, data.channels);
  fmt::print("  data        {}: {} {}, {}\n", printable(name_of(options.data)), splits(inputs), each,
             data.predicts_tokens() ? fmt::format("a vocabulary of {}", data.vocabulary)
                                    : counted(data.labels, data.classes.size()));
  if (!inputs.evaluation.during) fmt::print("  evaluation  none: {}\n", printable(inputs.evaluation.absence));
  fmt::print("  input       {}\n", to_string(inputs.training_plan));
  if (replica.images)
    fmt::print("  images      {} in the GPU's memory, where they are augmented\n",
               format_bytes(replica.images->bytes()));
  fmt::print("  parameters  {}, gradients {} in {} bucket{} of up to {}{}\n",
             total_cost(replica.model.graph()).parameters, format_bytes(replica.model.parameters().gradients().bytes),
             replica.step->buckets().size(), replica.step->buckets().size() == 1 ? "" : "s", record.result.buckets,
             replica.plan ? " on rank 0" : "");
  if (!options.freeze.empty())
    fmt::print("  frozen      {} more, with batch norm's statistics\n", replica.model.parameters().count_frozen());
  if (const auto& plan = replica.plan)
    fmt::print("  pipeline    {} stages, cut before {}; rank 0 has the first\n", plan->nodes.size(),
               fmt::join(plan->cuts, ", "));
  fmt::print("  all-reduce  {}\n", replica.all_reduce.info().description);
  if (!summation_before.empty() && summation_before != replica.summation(inputs))
    fmt::print("  note        rounding may differ from the run before the checkpoint, which had {}\n",
               summation_before);
  for (const std::string& text :
       {unused_tasks(world.size()), warning, unused_wire(replica.all_reduce, parse_wire_type(options.wire))})
    if (!text.empty()) print_anyway(fmt::format("  {}     {}", mark, text));
  const std::size_t share = inputs.share(inputs.global_batch);
  const std::size_t parts = PartPlan(replica.step->part_plan()).of(inputs.global_batch, share).size();
  fmt::print("  step        global batch {} ({} on rank 0{}), the loss is the mean over it\n", inputs.global_batch,
             share, parts > 1 ? fmt::format(", in {} {}", parts, options.shards > 0 ? "shards" : "parts") : "");
  for (const std::string& line : announcement(options.strategy, inputs.strategy_plan(), inputs.workers()))
    fmt::print("  {}\n", line);
  fmt::print("  rate        {}\n", inputs.schedule.description());
  if (const std::vector<float>& weights = inputs.task.class_weights; !weights.empty())
    fmt::print("  loss        classes are weighted, from {:.4g} to {:.4g}\n", std::ranges::min(weights),
               std::ranges::max(weights));
  if (options.ema > 0) fmt::print("  weights     evaluations use their moving average (decay {})\n", options.ema);
  if (const LookaheadOptions& lookahead = options.lookahead; lookahead.every > 0)
    fmt::print(
        "  weights     become their average every {} steps, with a decay up to {}; evaluations use the average\n",
        lookahead.every, lookahead.decay);
  if (record.result.verifies)
    fmt::print("  verified    sums in every step, weights and optimizer states within {} steps\n", Verifier::kParts);
  fmt::print("  writes to   {}, all options to config.toml\n", printable(options.out.string()));
  std::fflush(stdout);
}

}  // namespace annulus
