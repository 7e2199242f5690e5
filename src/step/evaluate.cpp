#include "src/step/evaluate.h"

#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/base/error.h"
#include "src/data/bad_samples.h"
#include "src/data/loader.h"
#include "src/step/infer.h"
#include "src/step/infer_views.h"

namespace annulus {
namespace {

// Returns whether any rank is to stop. Checked after every batch, because evaluating a large data set must not delay a
// stop.
bool stopping(const World& world, const EvaluationPlan& plan, Activity& activity) {
  if (!plan.stop_requested) return false;
  activity.enter(Activity::Phase::between_steps);
  std::array<std::int64_t, 1> requests{plan.stop_requested()};
  world.sum(requests);
  activity.enter(Activity::Phase::evaluation);
  return requests[0] > 0;
}

// Adds the predictions of a batch.
void add(std::span<const float> logits, std::span<const std::int32_t> labels, ConfusionMatrix& confusion) {
  for (std::size_t i = 0; i < labels.size(); ++i)
    confusion.add(static_cast<std::size_t>(labels[i]),
                  predicted_class(logits.subspan(i * confusion.classes(), confusion.classes())));
}

void add(const LossSums& sums, LossSums& to) {
  to.loss += sums.loss;
  to.measure += sums.measure;
  to.among_largest += sums.among_largest;
  to.targets += sums.targets;
}

// Sums all units, whose losses one rank each has computed. The others add zeros to it, which is exact, so the result
// does not depend on the ranks.
LossSums sum_units(const World& world, std::vector<LossSums>& units) {
  static_assert(sizeof(LossSums) == 4 * sizeof(double));
  world.sum({&units.front().loss, 4 * units.size()});
  LossSums all;
  for (const LossSums& unit : units) add(unit, all);
  return all;
}

// `sums`: with the number of images or, in shares, of windows of tokens as its targets.
Score score_of(const LossSums& sums, const DatasetInfo& data, const std::optional<ClassCounts>& class_counts) {
  const WindowForm window{data.length, data.prediction};
  const auto length = static_cast<double>(data.predicts_tokens() ? window.targets() : 1);
  const double count = std::round(length * sums.targets);
  Score score{.count = static_cast<std::uint64_t>(count)};
  const EvaluationSums all{sums, count, length, data, class_counts ? &*class_counts : nullptr};
  for (const Measure measure : measures_of(data)) score[measure] = info(measure).of(all);
  return score;
}

// Called after a forward pass, with the batch's samples that it has processed, and their losses.
using OnPrediction =
    std::function<void(const Range& samples, const LossSums& found, const std::function<std::vector<float>()>& logits)>;

void predict_images(Model& model, const Batch& batch, const InputPlan& input, Activity& activity,
                    const OnPrediction& done) {
  infer(model, batch, input, activity, [&](const Network& network, const Range& samples) {
    if (network.computes_loss()) done(samples, network.loss(), [&] { return read_logits(model, network); });
  });
}

void predict_views(Model& model, const Batch& batch, const InputPlan& input, Activity& activity,
                   const OnPrediction& done) {
  const std::vector<float> logits = infer_views(model, batch, input, activity);
  if (!logits.empty()) done({0, batch.size()}, class_sums(logits, batch.labels), [&] { return logits; });
}

// The mean logits count as a single network's.
void expect_softmax(const Model& model) {
  if (!std::holds_alternative<SoftmaxCrossEntropy>(model.graph().nodes().back().operation))
    fail("--views: requires --loss softmax: remove the option");
}

}  // namespace

std::string to_string(const Evaluation& e) {
  std::string text = fmt::format("{} {}  {} {}", e.split, to_string(Measure::loss, e.score[Measure::loss].value()),
                                 e.split, headline(e.score));
  for (const Measure measure : further_measures(e.score))
    if (measure != Measure::loss) text += "  " + to_string(measure, e.score.value(measure).value());
  return text;
}

std::optional<Evaluation> evaluate(const World& world, const World& replicas, Model& model, const Samples& dataset,
                                   const InputPlan& input, const EvaluationPlan& plan, Activity& activity) {
  activity.enter(Activity::Phase::evaluation);
  const DatasetInfo& data = dataset.info();
  BadSamples bad(world.rank_in_job(world.rank()));
  std::size_t skipped = 0;
  std::optional<ConfusionMatrix> confusion;
  if (plan.confusion && data.labels == LabelKind::one_class) confusion.emplace(data.classes.size());
  std::optional<ClassCounts> class_counts;
  if (data.labels == LabelKind::several_classes) class_counts.emplace(data.classes.size());
  const bool views = input.views.size() > 1;
  if (views) expect_softmax(model);
  const auto predict = views ? predict_views : predict_images;
  // In each batch a rank has one unit, or none if too few are left.
  const auto ranks = static_cast<std::size_t>(replicas.size());
  Loader loader(dataset, input,
                {.global_batch = plan.unit * ranks,
                 .rank = replicas.rank(),
                 .ranks = replicas.size(),
                 .start = {},
                 .end_epoch = 1,
                 .unit = plan.unit});
  std::size_t units = (data.size + plan.unit - 1) / plan.unit;
  if (plan.units > 0) units = std::min(units, plan.units);
  std::vector<LossSums> sums(units);
  for (std::size_t first = 0; first < units; first += ranks) {
    const Batch& batch = loader.next();
    activity.tick();
    if (const std::size_t unit = first + static_cast<std::size_t>(replicas.rank()); unit < units) {
      skipped += bad.report(batch);
      predict(model, batch, input, activity, [&](const Range& samples, LossSums found, const auto& logits) {
        if (!data.predicts_tokens()) found.targets = static_cast<double>(samples.size());
        add(found, sums[unit]);
        const Labels labels = batch.labels_of(samples);
        if (confusion) add(logits(), labels.classes, *confusion);
        if (class_counts) class_counts->add(logits(), labels.targets);
      });
    }
    if (plan.progress) plan.progress(batch.step.positions.end);
    if (stopping(world, plan, activity)) return {};
  }
  activity.enter(Activity::Phase::meeting);
  const LossSums all = sum_units(world, sums);
  if (confusion) world.sum(confusion->counts());
  if (class_counts) world.sum(class_counts->counts());
  skipped = skipped_on_all_ranks(replicas, skipped);
  if (all.targets == 0) fail("nothing to evaluate: all {} samples are bad", skipped);
  const Score score = score_of(all, data, class_counts);
  return Evaluation{plan.split, score, skipped, std::move(confusion), std::move(class_counts)};
}

}  // namespace annulus
