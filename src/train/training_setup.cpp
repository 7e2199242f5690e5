#include "src/train/training_setup.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <variant>

#include "collectives/shard_tree.h"
#include "kernels/base/error.h"
#include "models/graph/state_dict.h"
#include "models/rewrites/freeze.h"
#include "models/rewrites/recompute.h"
#include "models/rewrites/synchronize.h"
#include "models/rewrites/transformer_dropout.h"
#include "src/onnx/network_file.h"
#include "src/train/strategy_plan.h"
#include "src/train/whitening.h"

namespace annulus {

Task task_of(const DatasetInfo& info, const InputPlan& input, const std::string& loss) {
  if (info.is_text()) {
    const bool masked = info.prediction == Prediction::masked;
    const std::size_t tokens = masked ? std::max(info.vocabulary, info.mask_token + 1) : info.vocabulary;
    Task task = token_task({info.length, tokens, info.prediction});
    task.labels = info.labels;
    task.classes = info.classes.size();
    task.loss = parse_loss(loss, info.labels);
    return task;
  }
  return {{input.image.height, input.image.width, input.channels},
          info.mean,
          info.stddev,
          info.classes.size(),
          info.labels,
          parse_loss(loss, info.labels)};
}

namespace {

// n / (k n_c) for class c with n_c of n images, of k classes with images, so that the mean over all images is 1.
std::vector<float> balanced_weights(const Samples& training) {
  std::vector<std::size_t> counts(training.info().classes.size());
  std::size_t images = 0;
  for (std::size_t sample = 0; sample < training.info().size; ++sample) {
    try {
      ++counts[static_cast<std::size_t>(training.label(sample))];
      ++images;
    } catch (const Error&) {  // reported when the sample is used
    }
  }
  const auto used = static_cast<double>(counts.size() - static_cast<std::size_t>(std::ranges::count(counts, 0u)));
  std::vector<float> weights;
  for (const std::size_t count : counts)
    weights.push_back(
        count == 0 ? 1 : static_cast<float>(static_cast<double>(images) / (used * static_cast<double>(count))));
  return weights;
}

// The weights of --class-weights; none if all are 1.
std::vector<float> class_weights(const Samples& training, const TrainOptions& options) {
  if (options.balance_classes) return balanced_weights(training);
  const std::size_t weights = options.class_weights.size(), classes = training.info().classes.size();
  if (weights > 0 && weights != classes) fail("--class-weights: {} weights for {} classes", weights, classes);
  return options.class_weights;
}

// Throws Error if an option needs labels that are one class.
void expect_options_for(const DatasetInfo& info, const InputPlan& input, const TrainOptions& options) {
  if (info.labels == LabelKind::one_class) return;
  const bool weights = options.balance_classes || !options.class_weights.empty();
  for (const auto& [used, option] : {std::pair(input.augmentation.mixing.mixup > 0, "--augment mixup"),
                                     {input.augmentation.mixing.cutmix > 0, "--augment cutmix"},
                                     {options.label_smoothing > 0, "--label-smoothing"},
                                     {weights, "--class-weights"}})
    if (used)
      fail("{}: requires one class for each image, but the labels are {}: remove the option", option,
           description(info.labels));
}

}  // namespace

Task task_of(const Samples& training, const InputPlan& input, const TrainOptions& options) {
  expect_options_for(training.info(), input, options);
  Task task = task_of(training.info(), input, options.loss);
  task.class_weights = class_weights(training, options);
  if (options.data.views != "one" && task.loss != Loss::softmax)
    fail("--views: requires --loss softmax: remove one of them");
  task.label_smoothing = options.label_smoothing;
  task.mixed_labels = input.augmentation.mixes();
  task.zero_init_last_norm = options.zero_init;
  return task;
}

namespace {

// Returns the value of the last pattern that matches.
std::optional<float> last_match(const std::vector<PatternValue>& values, const std::string& parameter) {
  const auto found = std::find_if(values.rbegin(), values.rend(),
                                  [&](const PatternValue& one) { return matches(one.pattern, parameter); });
  return found == values.rend() ? std::nullopt : std::optional(found->value);
}

void expect_matches(const Graph& graph, const std::vector<PatternValue>& values, const std::string& option) {
  std::vector<std::string> patterns;
  std::ranges::transform(values, std::back_inserter(patterns), &PatternValue::pattern);
  expect_matches(graph, patterns, option);
}

// Replaces the pattern "head" by the last layer with weights, unless the network has a part with this name.
std::vector<PatternValue> with_head(std::vector<PatternValue> values, const Graph& graph) {
  const auto is_named_head = [](const StateTensor& tensor) { return matches("head", tensor.parameter); };
  if (std::ranges::any_of(state_dict(graph), is_named_head)) return values;
  for (PatternValue& value : values)
    if (value.pattern == "head") value.pattern = graph.nodes()[head_of(graph)].name;
  return values;
}

// Whether a node's tensors are matrices between layers: not tables, and not stacks of small matrices.
bool has_matrices(const Operation& operation) {
  if (const auto* convolution = std::get_if<Convolution>(&operation)) return convolution->groups == 1;
  return !std::holds_alternative<TokenEmbedding>(operation) && !std::holds_alternative<PositionEmbedding>(operation) &&
         !std::holds_alternative<Learned>(operation) && !std::holds_alternative<LanguageModelHead>(operation);
}

// Returns the parameters that Muon orthogonalizes.
std::set<std::string> muon_matrices(const TrainOptions& options, const Graph& graph) {
  std::set<std::string> names;
  if (options.optimizer.kind != "muon") return names;
  expect_matches(graph, options.muon_except, "--muon-except");
  const auto excepted = [&](const std::string& name) {
    return std::ranges::any_of(options.muon_except, [&](const auto& pattern) { return matches(pattern, name); });
  };
  for (std::size_t i = 0; i < graph.nodes().size(); ++i) {
    const Node& node = graph.nodes()[i];
    if (i == head_of(graph) || !has_matrices(node.operation)) continue;
    for (const ParameterDeclaration& parameter : graph.parameters(node))
      if (const std::string name = parameter_name(node, parameter.name);
          parameter.role == Role::weight && parameter.shape.size() > 1 && !excepted(name))
        names.insert(name);
  }
  if (names.empty()) fail("--optimizer muon: {} has no matrices before the head: use --optimizer adamw", options.model);
  return names;
}

// The matrices' rate, relative to --lr.
float muon_factor(const TrainOptions& options) {
  return options.muon_rate == 0 ? 1 : static_cast<float>(options.muon_rate / options.schedule.rate);
}

}  // namespace

Optimizer::FactorsOf update_factors(const TrainOptions& options, const Graph& graph, std::uint64_t steps) {
  const std::vector<PatternValue> rates = with_head(options.rate_factors, graph);
  const std::vector<PatternValue> decays = with_head(options.weight_decays, graph);
  expect_matches(graph, rates, "--lr-for");
  const std::vector<PatternValue> ends = with_head(options.freeze_after, graph);
  expect_matches(graph, decays, "--weight-decay");
  expect_matches(graph, ends, "--freeze-after");
  const double steps_of_epoch = static_cast<double>(steps) / static_cast<double>(options.epochs);
  const std::set<std::string> matrices = muon_matrices(options, graph);
  const float of_matrices = muon_factor(options);
  return [=](const std::string& parameter) -> UpdateFactors {
    const bool matrix = matrices.contains(parameter);
    UpdateFactors factors{last_match(rates, parameter).value_or(1) * (matrix ? of_matrices : 1),
                          last_match(decays, parameter), matrix};
    if (const auto epochs = last_match(ends, parameter))
      factors.last_step = static_cast<std::uint64_t>(std::lround(static_cast<double>(*epochs) * steps_of_epoch));
    return factors;
  };
}

namespace {

bool begins_at_zero(const Graph& graph) {
  return std::ranges::any_of(graph.nodes(), [](const Node& node) {
    const auto* norm = std::get_if<BatchNorm>(&node.operation);
    return norm != nullptr && norm->initial_scale == 0;
  });
}

}  // namespace

Graph graph_of(const World& world, const TrainOptions& options, const std::string& onnx, const Task& task) {
  Graph graph = make_network(network_name(options.model), onnx, task);
  if (options.zero_init && !begins_at_zero(graph))
    fail("--zero-init: {} has no residual blocks; remove the option, or give --zero-init=false", options.model);
  if (options.sync_batch_norm) {
    Graph synchronized = synchronize_batch_norms(graph);  // rejects the same models on any number of ranks
    if (world.size() > 1) graph = std::move(synchronized);
  }
  if (options.dropout > 0) graph = add_transformer_dropout(graph, options.dropout);
  if (options.recompute == "blocks") graph = recompute_blocks(graph);
  std::vector<std::string> frozen = options.freeze;
  if (!options.whiten.empty()) frozen.push_back(Whitening(graph, options.whiten).weight());
  return freeze(graph, frozen);
}

Averaging averaging_of(const TrainOptions& options, std::uint64_t steps) {
  const LookaheadOptions& lookahead = options.lookahead;
  if (lookahead.every > 0) return {lookahead.decay, lookahead.every, steps};
  return {options.ema};
}

StepOptions step_options(const World& world, const TrainOptions& options, std::size_t global_batch) {
  return {.parts = options.accumulate,
          .shards = options.shards,
          .rank = static_cast<std::size_t>(world.rank()),
          .ranks = static_cast<std::size_t>(world.size()),
          .clip_norm = options.clip_norm,
          .finite_gradients = options.skip_not_finite > 0,
          .global_batch = global_batch,
          .strategy = plan_strategy(world, options, global_batch).step};
}

std::unique_ptr<AllReduce> open_all_reduce(const World& world, const TrainOptions& options, Device& device,
                                           std::optional<std::size_t> crossover) {
  if (options.shards > 0 || options.survival.on) return make_shard_all_reduce(world, device, options.shards);
  return make_all_reduce(options.all_reduce, world, device, parse_wire_type(options.wire), crossover);
}

std::unique_ptr<AllReduce> open_within_node(const World& world, const TrainOptions& options, Device& device) {
  const bool orthogonalizes = std::holds_alternative<Muon>(update_rule(options.optimizer));
  const bool same_updates =
      std::holds_alternative<Synchronous>(options.strategy) || std::holds_alternative<Pipeline>(options.strategy);
  if (!orthogonalizes || !same_updates || options.buckets.deferred > 0 || options.survival.on) return nullptr;
  return make_node_all_reduce(world, device);
}

void expect_same_passes(const World& world, const TrainOptions& options, std::size_t images) {
  const auto ranks = static_cast<std::size_t>(world.size());
  const std::size_t most = split(images, ranks, 0).size(), least = split(images, ranks, ranks - 1).size();
  const auto parts = [&](std::size_t share) { return std::min(options.accumulate, share); };
  if (parts(most) == parts(least) || images == 0) return;
  fail(
      "--sync-batch-norm: in steps of {} images some of {} ranks have {} and others {}, {}; choose another "
      "--global-batch",
      images, ranks, most, least,
      least == 0 ? "but each needs one"
                 : fmt::format("which cannot be split into {} parts consistently", options.accumulate));
}

std::size_t workers_of(const World& world, const TrainOptions& options) {
  const auto ranks = static_cast<std::size_t>(world.size());
  return ranks - std::min(servers_of(options.strategy), ranks - 1);
}

std::size_t global_batch_of(const World& world, const TrainOptions& options) {
  const std::size_t all = static_cast<std::size_t>(world.size()), servers = servers_of(options.strategy);
  if (servers >= all) fail("--servers {}: at least one of {} ranks must compute", servers, all);
  const std::size_t ranks = workers_of(world, options);
  const std::size_t shards = options.shards > 0 ? options.shards : ranks;
  check_shards(shards, ranks);
  const std::size_t batch = options.global_batch > 0 ? options.global_batch : options.batch * shards;
  if (batch < options.shards) fail("--shards {}: a global batch of {} has fewer samples", shards, batch);
  if (batch < ranks)
    fail("a global batch of {} cannot be shared by {} ranks: use --global-batch {} or more, or fewer ranks", batch,
         ranks, ranks);
  return batch;
}

}  // namespace annulus
