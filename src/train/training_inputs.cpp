#include "src/train/training_inputs.h"

#include <algorithm>
#include <iterator>

#include "src/job/open_device.h"
#include "src/train/training_setup.h"

namespace annulus {
namespace {

std::vector<DataField> samples_of(const Dataset& training, const Dataset& test) {
  std::vector<DataField> fields = sample_fields("training", training);
  std::ranges::move(sample_fields("test", test), std::back_inserter(fields));
  return fields;
}

}  // namespace

TrainingInputs::TrainingInputs(const World& world_, const TrainOptions& options_)
    : world(world_),
      options(options_),
      device(open_device(world, options.device)),
      training(data_files(options.data.files), "train"),
      test(data_files(options.data.files), "test"),
      training_plan(plan_input(options.data, training.info(), Purpose::training, decoding_threads(*device))),
      test_plan(plan_input(options.data, test.info(), Purpose::evaluation, decoding_threads(*device))),
      global_batch(global_batch_of(world, options)),
      schedule(options.schedule, global_batch, options.epochs),
      samples(samples_of(training, test)) {}

std::size_t TrainingInputs::share(std::size_t images) const {
  return split(images, static_cast<std::size_t>(world.size()), static_cast<std::size_t>(world.rank())).size();
}

std::size_t TrainingInputs::largest_pass() const {
  const std::size_t images = std::min(global_batch, training.info().size);
  const std::size_t largest_share = split(images, static_cast<std::size_t>(world.size()), 0).size();
  return step_options(options).part(std::max<std::size_t>(largest_share, 1), 0).size();
}

BatchRequest TrainingInputs::batches_from(const Cursor& start) const {
  return {options.seed, global_batch,   world.rank(),       world.size(),
          start,        options.epochs, world.local_rank(), world.local_size()};
}

std::string TrainingInputs::sample_order() const {
  return order_of(training_plan, training.info());
}

bool TrainingInputs::complete(const RunState& state) const {
  return state.cursor.epoch >= options.epochs || (options.max_steps > 0 && state.step >= options.max_steps);
}

}  // namespace annulus
