#include "src/step/evaluate.h"

#include <array>
#include <cstdint>

#include "kernels/base/error.h"
#include "src/data/bad_samples.h"
#include "src/data/loader.h"
#include "src/step/infer.h"

namespace annulus {
namespace {

// Returns whether any rank is to stop. Checked after every batch, because evaluating a large data set must not delay a
// stop.
bool stopping(const World& world, const EvaluationPlan& plan, Activity& activity) {
  if (!plan.stop_requested) return false;
  activity.enter(Activity::Phase::meeting);
  std::array<std::int64_t, 1> requests{plan.stop_requested()};
  world.sum(requests);
  activity.enter(Activity::Phase::evaluation);
  return requests[0] > 0;
}

}  // namespace

std::string to_string(const Evaluation& e) {
  return fmt::format("{} loss {:.4f}  {} accuracy {:.2f} %{}", e.split, e.loss, e.split, 100 * e.accuracy(),
                     e.top5 ? fmt::format("  top-5 {:.2f} %", 100 * e.share(*e.top5)) : "");
}

std::optional<Evaluation> evaluate(const World& world, Model& model, const Dataset& dataset, const InputPlan& input,
                                   const EvaluationPlan& plan, Activity& activity) {
  activity.enter(Activity::Phase::evaluation);
  Loader loader(
      dataset, input,
      {.global_batch = plan.global_batch, .rank = world.rank(), .ranks = world.size(), .start = {}, .end_epoch = 1});
  BadSamples bad(world.rank());
  LossSums found;
  std::size_t images = 0, batches = 0;
  for (bool last = false; !last; last = last || ++batches == plan.batches) {
    const Batch& batch = loader.next();
    activity.tick();
    bad.add(batch);
    last = batch.step.last_of_epoch;
    images += batch.size();
    infer(model, batch, input, activity, [&found](const Network& network, const Range&) {
      const LossSums sums = network.loss();
      found.loss += sums.loss;
      found.correct += sums.correct;
      found.among_largest += sums.among_largest;
    });
    if (plan.progress) plan.progress(batch.step.positions.end);
    if (stopping(world, plan, activity)) return {};
  }
  activity.enter(Activity::Phase::meeting);
  std::array<double, 4> sums{found.loss, found.correct, found.among_largest, static_cast<double>(images)};
  world.sum(sums);
  const std::size_t skipped = bad.take_all(world);
  if (sums[3] == 0) fail("nothing to evaluate: all {} images are bad", skipped);
  Evaluation evaluation{.split = plan.split,
                        .count = static_cast<std::size_t>(sums[3]),
                        .correct = static_cast<std::size_t>(sums[1]),
                        .top5 = {},
                        .skipped = skipped,
                        .loss = sums[0] / sums[3]};
  if (dataset.info().classes.size() > SoftmaxCrossEntropy::kTop) evaluation.top5 = static_cast<std::size_t>(sums[2]);
  return evaluation;
}

}  // namespace annulus
