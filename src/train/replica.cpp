#include "src/train/replica.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/io/bytes.h"
#include "src/train/training_setup.h"

namespace annulus {

Replica::Replica(const TrainingInputs& inputs, AllReduce& all_reduce_, RunRecord& record)
    : all_reduce(all_reduce_),
      model(
          *inputs.device, graph_of(inputs.world, inputs.options, inputs.network.onnx, inputs.task), Mode::training,
          inputs.largest_pass(), allocate_in(all_reduce), [&activity = record.activity] { activity.tick(); },
          inputs.options.strategy == "sharded" ? allocate_in(all_reduce) : Parameters::Allocate{}),
      optimizer(*inputs.device, model.parameters(), update_rule(inputs.options), inputs.schedule.rate(0),
                inputs.options.ema, update_factors(inputs.options, model.graph())),
      ledger(record.clock_offset),
      trainer(model, all_reduce, optimizer, ledger, inputs.options.buckets, record.activity, record.timeline.step(),
              step_options(inputs.world, inputs.options, inputs.global_batch)) {
  all_reduce.record_to(record.timeline.all_reduce());
  model.record_to(record.timeline.step());
}

void Replica::plan_networks(const TrainingInputs& inputs) {
  const std::size_t size = inputs.training->info().size;
  const StepOptions step = step_options(inputs.world, inputs.options, inputs.global_batch);
  for (const std::size_t images : {std::min(inputs.global_batch, size), size % inputs.global_batch}) {
    const std::size_t share = inputs.share(images);
    for (std::size_t number = 0; number < step.parts_of(share); ++number)
      if (const std::size_t part = step.part(images, share, number).size(); part > 0)
        model.network(Mode::training, part);
  }
}

std::string Replica::summation(const TrainingInputs& inputs) const {
  if (const std::size_t shards = inputs.options.shards; shards > 0)
    return fmt::format("tree of {} shards, {} thread(s)", shards, inputs.options.device.threads);
  const std::size_t passes = inputs.options.accumulate;
  const std::string parts = passes > 1 ? fmt::format(", {} parts", passes) : "";
  if (inputs.world.size() == 1) return "one rank" + parts;
  return fmt::format("{} ranks, {}, buckets of {}{}", inputs.world.size(), all_reduce.info().order,
                     format_bytes(trainer.bucket_options().bytes), parts);
}

}  // namespace annulus
