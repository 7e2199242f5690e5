#include "src/train/replica.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/instruction_set.h"
#include "src/io/bytes.h"
#include "src/step/bucket_plan.h"
#include "src/step/strategies.h"
#include "src/train/training_setup.h"

namespace annulus {

namespace {

Graph graph_of(const TrainingInputs& inputs) {
  return graph_of(inputs.replicas(), inputs.options, inputs.network.onnx, inputs.task);
}

// Arrays like the parameters that a rank has beside weights and gradients.
std::size_t states_of(const TrainOptions& options) {
  return states(update_rule(options.optimizer)) + (options.accumulate > 1 ? 1 : 0) +
         (averaging_of(options, 0).on() ? 1 : 0);
}

std::optional<PipelinePlan> plan_stages(const TrainingInputs& inputs, Activity& activity,
                                        const std::vector<std::string>& cuts) {
  if (!inputs.pipeline) return std::nullopt;
  const TrainOptions& options = inputs.options;
  const std::size_t arenas = 2 + states_of(options);  // with weights and gradients
  return plan_pipeline(inputs.world, *inputs.device, graph_of(inputs), stages_of(options.strategy), options.accumulate,
                       inputs.largest_pass(), arenas, activity, cuts);
}

StepOptions options_of(const TrainingInputs& inputs, PipelineLink* link) {
  StepOptions options = step_options(inputs.replicas(), inputs.options, inputs.global_batch);
  options.pipeline = link;
  return options;
}

// All images are read before the first step, which pays off from the second epoch on.
std::unique_ptr<ResidentImages> images_of(const TrainingInputs& inputs) {
  if (inputs.pipeline || inputs.options.epochs < 2) return nullptr;
  return keep_on_gpu(*inputs.device, *inputs.training, inputs.training_plan);
}

ReplicaPlan plan_of(const TrainingInputs& inputs, Activity& activity, const std::vector<std::string>& cuts) {
  auto link = inputs.pipeline ? std::make_unique<PipelineLink>(inputs.pipeline->stages, *inputs.device) : nullptr;
  auto stages = plan_stages(inputs, activity, cuts);
  const StepOptions step = options_of(inputs, link.get());
  const std::size_t size = inputs.step_size();
  const std::size_t steps = inputs.options.epochs * ((inputs.training->info().size + size - 1) / size);
  auto within_node = open_within_node(inputs.replicas(), inputs.options, *inputs.device);
  return {*inputs.device,
          inputs.options,
          graph_of(inputs),
          inputs.largest_pass(),
          step,
          inputs.schedule.rate(0),
          std::move(within_node),
          steps,
          std::move(link),
          std::move(stages),
          images_of(inputs)};
}

}  // namespace

Replica::Replica(const TrainingInputs& inputs, AllReduce& all_reduce_, RunRecord& record,
                 const std::vector<std::string>& cuts)
    : Replica(plan_of(inputs, record.activity, cuts), all_reduce_, record) {}

Replica::Replica(ReplicaPlan built_from, AllReduce& all_reduce_, RunRecord& record)
    : all_reduce(all_reduce_),
      within_node(std::move(built_from.within_node)),
      link(std::move(built_from.link)),
      plan(std::move(built_from.pipeline)),
      images(std::move(built_from.images)),
      model(
          built_from.device, std::move(built_from.graph), Mode::training, built_from.largest_pass,
          allocate_in(all_reduce), [&activity = record.activity] { activity.tick(); },
          allocate_weights(built_from.step.strategy, all_reduce),
          plan ? std::optional(plan->nodes[link->stage()]) : std::nullopt,
          kept_by(built_from.step.strategy) == Optimizer::Keeps::all ? states_of(built_from.options) : 0),
      optimizer(built_from.device, model.parameters(), update_rule(built_from.options.optimizer), built_from.rate,
                averaging_of(built_from.options, built_from.steps), kept_by(built_from.step.strategy),
                update_factors(built_from.options, model.graph(), built_from.steps)),
      ledger(record.clock_offset),
      step(make_step({model, all_reduce, optimizer, ledger, record.activity, record.timeline.step(), images.get(),
                      within_node.get()},
                     built_from.options.buckets, built_from.step)) {
  all_reduce.record_to(record.timeline.all_reduce());
  model.record_to(record.timeline.step());
}

InputPlan Replica::input(const TrainingInputs& inputs) const {
  InputPlan input = inputs.training_plan;
  input.resident = images != nullptr;
  return input;
}

void Replica::plan_networks(const TrainingInputs& inputs) {
  const std::size_t size = inputs.training->info().size;
  PartPlan parts = step->part_plan();
  for (const std::size_t samples : {std::min(inputs.step_size(), size), size % inputs.step_size()})
    for (const BatchPart& part : parts.of(samples, inputs.share(samples)))
      if (part.samples.size() > 0) model.network(Mode::training, part.samples.size(), part.slot);
}

std::string Replica::summation(const TrainingInputs& inputs) const {
  const std::string processors = inputs.device->info().shares_host_memory
                                     ? fmt::format(", instruction set {}", to_string(used_instruction_set()))
                                     : "";
  if (const std::size_t shards = inputs.options.shards; shards > 0)
    return fmt::format("tree of {} shards, {} thread(s){}", shards, inputs.options.device.threads, processors);
  const std::size_t passes = inputs.options.accumulate;
  const std::string parts = passes > 1 ? fmt::format(", {} parts", passes) : "";
  const int ranks = inputs.replicas().size();
  if (ranks == 1) return "one rank" + parts + processors;
  return fmt::format("{} ranks, {}, buckets of {}{}{}{}", ranks, all_reduce.info().order,
                     format_bytes(resolve(inputs.options.buckets, model.parameters(), all_reduce).bytes), parts,
                     summation_note(inputs.options.strategy), processors);
}

}  // namespace annulus
