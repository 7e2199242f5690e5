#include "src/evaluate.h"

#include <algorithm>
#include <array>
#include <bit>

#include "kernels/error.h"
#include "src/bad_samples.h"
#include "src/data/loader.h"

namespace annulus {
namespace {

// A batch that bad samples have made smaller may have any size, and a network for each would take too much memory: it
// is worked through in powers of two. Other batches have one of the few sizes that shares have.
std::size_t piece(const Batch& batch, std::size_t done) {
  const std::size_t left = batch.size() - done;
  return batch.bad.empty() ? left : std::bit_floor(left);
}

}  // namespace

Evaluation evaluate(const World& world, Model& model, const Dataset& dataset, const InputPlan& input,
                    std::size_t global_batch, Activity& activity) {
  activity.enter(Activity::Phase::evaluation);
  Loader loader(
      dataset, input,
      {.global_batch = global_batch, .rank = world.rank(), .ranks = world.size(), .start = {}, .end_epoch = 1});
  BadSamples bad(world.rank());
  LossSums found;
  for (bool last = false; !last;) {
    const Batch& batch = loader.next();
    bad.add(batch);
    last = batch.step.last_of_epoch;
    for (std::size_t done = 0; done < batch.size();) {
      const std::size_t count = piece(batch, done);
      Network& network = model.network(Mode::inference, count);
      network.load(std::span(batch.images).subspan(done * input.image_bytes(), count * input.image_bytes()),
                   std::span(batch.labels).subspan(done, count));
      network.forward([&activity](std::size_t) { activity.tick(); });
      const LossSums sums = network.loss();
      found.loss += sums.loss;
      found.correct += sums.correct;
      done += count;
    }
  }
  activity.enter(Activity::Phase::meeting);
  std::array<double, 2> sums{found.loss, found.correct};
  world.sum(sums);
  const std::size_t skipped = bad.take_all(world);
  if (skipped == dataset.info().size) fail("nothing to evaluate: all {} images are bad", skipped);
  const std::size_t count = dataset.info().size - skipped;
  return {count, static_cast<std::size_t>(sums[1]), skipped, sums[0] / static_cast<double>(count)};
}

}  // namespace annulus
