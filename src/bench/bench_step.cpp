#include "src/bench/bench_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "kernels/base/allowed_resources.h"
#include "kernels/base/error.h"
#include "kernels/base/median.h"
#include "kernels/base/on_error.h"
#include "kernels/base/random.h"
#include "kernels/base/split.h"
#include "models/graph/cost.h"
#include "models/rewrites/freeze.h"
#include "models/rewrites/recompute.h"
#include "models/zoo/zoo.h"
#include "src/apply/trained_network.h"
#include "src/bench/compute_slow_down.h"
#include "src/checkpoint/restore.h"
#include "src/data/loader.h"
#include "src/data/open_samples.h"
#include "src/energy/energy_meter.h"
#include "src/io/bytes.h"
#include "src/io/printable.h"
#include "src/io/progress.h"
#include "src/io/sample_unit.h"
#include "src/io/terminal.h"
#include "src/job/consistency.h"
#include "src/job/machine.h"
#include "src/job/open_device.h"
#include "src/metrics/results.h"
#include "src/onnx/network_file.h"
#include "src/scaling/step_profile.h"
#include "src/step/bucket_plan.h"
#include "src/step/replicas.h"
#include "src/step/timeline.h"
#include "src/step/utilization.h"
#include "src/train/faster_plans.h"
#include "src/train/replica.h"
#include "src/train/training_setup.h"

namespace annulus {
namespace {

// Steps that are not counted: the first ones plan and record; more follow if they are short.
constexpr std::size_t kFirstSteps = 3;
constexpr std::size_t kWarmUpSteps = 5;
constexpr double kWarmUpSeconds = 1;

// Steps per turn: fewer if they are long.
constexpr std::size_t kFewestSteps = 3;
constexpr std::size_t kMostSteps = 10;
constexpr double kTurns = 6;    // at least, if the steps are not too long: enough for an interval
constexpr double kSlack = 1.5;  // limit for the turns, relative to the requested time

constexpr double kProfileSeconds = 1;
constexpr float kRate = 1e-4f;  // a learning rate, which does not matter here

// Training samples in data files.
struct Data {
  explicit Data(const BenchStepOptions& options)
      : samples(
            open_samples(data_files(options.data.files), "train",
                         options.data.length > 0 ? options.data.length : default_task(options.model).tokens.length)),
        plan(plan_input(options.data, samples->info(), Purpose::training, 1, image_size(options))) {}

  ImageSize image_size(const BenchStepOptions& options) const {  // as train would scale encoded images
    if (!samples->info().encoded() || !is_network_file(options.model)) return {};
    const ImageShape image = default_task(options.model).image;
    return {image.height, image.width};
  }

  std::unique_ptr<const Samples> samples;
  InputPlan plan;
};

Graph network_of(const BenchStepOptions& options, const TrainedNetwork* trained, const Data* data) {
  if (trained != nullptr) return freeze(trained->graph, trained->checkpoint().frozen);
  if (data != nullptr) return make_network(options.model, task_of(data->samples->info(), data->plan, "auto"));
  const auto& image = options.image;
  Task task = default_task(options.model);
  if (task.reads_tokens()) {
    if (options.data.length > 0) task.tokens.length = options.data.length;
    if (options.vocabulary > 0) task.tokens.vocabulary = options.vocabulary;
  } else {
    task = neutral_task({image[0], image[1], image[2]}, options.classes);
  }
  return make_network(options.model, task);
}

Graph graph_of(const BenchStepOptions& options, const TrainedNetwork* trained, const Data* data) {
  const Graph graph = network_of(options, trained, data);
  return options.recompute == "blocks" ? recompute_blocks(graph) : graph;
}

// Returns the tokens in a window; 0 if the network reads images.
std::size_t length_of(const Graph& graph) {
  return graph.reads_tokens() ? graph.tokens().length : 0;
}

// Fills in the checkpoint's model, image and classes if the options do not have them. Throws Error if they differ.
void take_network(BenchStepOptions& options, const TrainedNetwork& trained) {
  const ImageShape& image = trained.graph.image();
  const std::size_t classes = trained.checkpoint().data.classes.size();
  const auto take = [&](auto& option, const auto& value, std::string_view name) {
    if (option != std::decay_t<decltype(option)>{} && option != value)
      fail("{} is of {} for images of {}x{}x{} and {} classes: remove --{}", trained.file.path().string(),
           trained.checkpoint().model, image.height, image.width, image.channels, classes, name);
    option = value;
  };
  take(options.model, trained.checkpoint().model, "model");
  if (!options.image.empty() && options.image[2] == 0) options.image[2] = image.channels;
  take(options.image, std::vector{image.height, image.width, image.channels}, "image");
  take(options.classes, classes, "classes");
}

// Fills in the images, channels and classes that the options do not have: the zoo's, or those of an ONNX file.
void take_default_task(BenchStepOptions& options) {
  if (!options.image.empty() && options.image[2] > 0 && options.classes > 0) return;
  const Task task = default_task(options.model);
  if (options.image.empty()) options.image = {task.image.height, task.image.width, task.image.channels};
  if (options.image[2] == 0) options.image[2] = task.image.channels;
  if (options.classes == 0) options.classes = task.classes;
}

// Returns options for a run with this all-reduce and strategy.
TrainOptions run_options(const BenchStepOptions& options, const std::string& all_reduce, const std::string& strategy) {
  TrainOptions run = options;
  run.all_reduce = all_reduce;
  run.strategy = make_strategy({.name = strategy});
  return run;
}

// A run's all-reduce and replica, and the measured steps.
struct Candidate {
  Candidate(const BenchStepOptions& all, const std::string& all_reduce_, const std::string& strategy_,
            const World& world, Device& device, const Graph& graph, RunRecord& record)
      : options(run_options(all, all_reduce_, strategy_)),
        strategy(strategy_),
        name(strategy == "synchronous" ? options.all_reduce : fmt::format("{}/{}", options.all_reduce, strategy)),
        all_reduce(open_all_reduce(world, options, device)),
        replica({device, options, graph,
                 split(options.global_batch, options.shards > 0 ? options.shards : world.size(), 0).size(),
                 step_options(world, options, options.global_batch), kRate, open_within_node(world, options, device)},
                *all_reduce, record),
        buckets(to_string(resolve(options.buckets, replica.model.parameters(), *all_reduce))),
        on_gpu(!device.info().shares_host_memory),
        energy(world, device) {
    replica.model.parameters().initialize(options.seed);
    replica.ledger.observe([this](double wall_seconds, double compute_seconds) {
      seconds.push_back(wall_seconds);
      compute.push_back(compute_seconds);
    });
  }

  void restore(const TrainedNetwork& trained) {
    restore_parameters(trained.file, replica.model);
    restore_states(trained.file, replica.model, replica.optimizer);
    replica.optimizer.set_step(trained.checkpoint().run.step);
  }

  const TrainOptions options;
  std::string strategy;
  std::string name;  // all-reduce and strategy
  std::unique_ptr<AllReduce> all_reduce;
  Replica replica;
  std::string buckets;  // their size
  const bool on_gpu;
  EnergyMeter energy;                   // while steps are measured
  std::uint64_t after_first_steps = 0;  // checksum
  std::vector<double> seconds;          // for every step
  std::vector<double> compute;          // each step's seconds of computing, the ranks' mean
  std::vector<Accounts> turns;
  Accounts accounts;  // for typical turns
  Energy used;        // while all steps were measured
};
using Candidates = std::deque<Candidate>;  // a deque because they cannot be moved

// Checks the memory before allocating, because it would take minutes until a model that is too large fails. On a GPU
// the model does.
void report_memory(const World& world, const BenchStepOptions& options, const Graph& graph, Device& device) {
  if (!device.info().shares_host_memory) return;
  expect_to_fit(device, graph, Mode::training, options.batch);
  constexpr std::size_t arenas = 3;  // weights, gradients, momenta
  const std::size_t one = activation_arena_bytes(device, graph, Mode::training, options.batch) +
                          arenas * total_cost(graph).gradient_bytes();
  const std::size_t bytes = one * options.all_reduces.size() * options.strategies.size();
  if (const std::size_t allowed = memory_share(); bytes > allowed)
    fail("{} with --batch {} takes about {} of memory on each rank, which may use {} ({}{}): give a smaller --batch",
         options.model, options.batch, format_bytes(bytes), format_bytes(allowed), allowed_memory().source,
         world.local_size() > 1 ? ", shared by the ranks of a node" : "");
  if (!world.root()) return;
  fmt::print("planned: about {} of memory on each rank\n", format_bytes(bytes));
  std::fflush(stdout);
}

void add_random_tokens(Batch& batch, const Range& windows, const TokenShape& shape) {
  const WindowForm form = shape.form();
  std::vector<std::int32_t> tokens(windows.size() * form.size());
  const std::size_t first = windows.begin * form.size();
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const bool missing = i % form.size() >= form.predicted() + form.targets();
    tokens[i] = missing ? -1 : static_cast<std::int32_t>(mix(0, first + i) % shape.vocabulary);
  }
  const auto bytes = std::as_bytes(std::span(tokens));
  batch.images.resize(bytes.size());
  std::memcpy(batch.images.data(), bytes.data(), bytes.size());
  batch.labels.resize(windows.size());
}

// Returns this rank's share of a global batch; it depends on the batch's size only.
Batch random_batch(const BenchStepOptions& options, const World& world, const Graph& graph) {
  Batch batch;
  batch.step = {0, {0, options.global_batch}, false};
  const Range share = batch.step.share(world.rank(), world.size(), options.shards);
  const auto fill = [&](auto& values, std::size_t each, std::uint64_t kind, const auto& value) {
    values.resize(share.size() * each);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = value(mix(kind, share.begin * each + i));
  };
  fill(batch.keys, 1, 2, [](std::uint64_t random) { return static_cast<std::int32_t>(random); });
  if (graph.reads_tokens()) {
    add_random_tokens(batch, share, graph.tokens());
    return batch;
  }
  fill(batch.images, options.image[0] * options.image[1] * options.image[2], 0,
       [](std::uint64_t random) { return static_cast<std::uint8_t>(random); });
  fill(batch.labels, 1, 1, [&](std::uint64_t random) { return static_cast<std::int32_t>(random % options.classes); });
  if (graph.labels() == LabelForm::targets)
    fill(batch.targets, options.classes, 1, [](std::uint64_t random) { return static_cast<float>(random % 2); });
  return batch;
}

// Returns an epoch's first batch.
Batch read_batch(const BenchStepOptions& options, const World& world, const Data& data) {
  if (const std::size_t size = data.samples->info().size; size < options.global_batch)
    fail("{} has {} training samples, and --batch {} on all ranks needs {}", name_of(options.data), size, options.batch,
         options.global_batch);
  Loader loader(*data.samples, data.plan,
                {.global_batch = options.global_batch,
                 .rank = world.rank(),
                 .ranks = world.size(),
                 .start = {},
                 .end_epoch = 1,
                 .shards = options.shards});
  return loader.next();
}

void make_step(Candidate& candidate, const Batch& batch) {
  candidate.replica.step->run(batch, {}, candidate.replica.model.device().mark());
}

// Returns the last step's seconds, on the slowest rank.
double make_steps(const World& world, Candidate& candidate, const Batch& batch, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) make_step(candidate, batch);
  candidate.replica.step->finish();
  double seconds = candidate.seconds.back();
  world.maximum(std::span(&seconds, 1));
  return seconds;
}

// Prints a line before minutes of silence. `seconds`: requested measuring time.
void announce_slow_steps(Meter& meter, const Candidate& candidate, double first, double seconds) {
  constexpr double kSlow = 1;
  if (first < kSlow) return;
  const double steps = kFirstSteps + 1 + std::max<double>(kFewestSteps, seconds / first);
  meter.line(fmt::format("{}: the first step took {:.1f} s; {:.0f} steps will take about {:.0f} s", candidate.name,
                         first, steps, steps * first));
}

struct Turns {
  std::size_t count, steps;
};

// Returns the turns that fill the requested time; the same on every rank.
Turns warm_up(const World& world, Candidates& candidates, const Batch& batch, const TrainedNetwork* trained,
              double seconds, Meter& meter) {
  double slowest = 0, done = 0;
  meter.begin();
  for (Candidate& candidate : candidates) {
    meter.show("warming up " + candidate.name, done, "");
    done += 1 / static_cast<double>(candidates.size());
    if (trained != nullptr) candidate.restore(*trained);
    announce_slow_steps(meter, candidate, make_steps(world, candidate, batch, 1), seconds);
    const double first = make_steps(world, candidate, batch, kFirstSteps - 1);
    candidate.after_first_steps = checksum(candidate.replica.model, candidate.replica.optimizer);
    const auto more = static_cast<std::size_t>(std::min<double>(kWarmUpSteps, kWarmUpSeconds / first));
    slowest = std::max(slowest, make_steps(world, candidate, batch, std::max<std::size_t>(1, more)));
    candidate.seconds.clear();
    candidate.compute.clear();
    candidate.replica.ledger.close(world);
  }
  const auto steps =
      static_cast<std::size_t>(std::clamp<double>(seconds / (slowest * kTurns), kFewestSteps, kMostSteps));
  return {std::max<std::size_t>(1, static_cast<std::size_t>(seconds / (slowest * static_cast<double>(steps)))), steps};
}

// Adds up the middle half of all turns by duration. So the ledger breaks down a typical step, like the median step
// time; a few disturbed steps would dominate a mean. `seconds`: for every step.
Accounts typical_accounts(const std::vector<Accounts>& turns, std::span<const double> seconds) {
  const std::size_t steps = seconds.size() / turns.size();
  std::vector<std::pair<double, std::size_t>> order;
  for (std::size_t turn = 0; turn < turns.size(); ++turn) {
    const auto of_turn = seconds.subspan(turn * steps, steps);
    order.emplace_back(std::reduce(of_turn.begin(), of_turn.end()), turn);
  }
  std::ranges::sort(order);
  const std::size_t dropped = turns.size() / 4;
  Accounts accounts;
  for (std::size_t place = dropped; place < turns.size() - dropped; ++place) accounts += turns[order[place].second];
  return accounts;
}

// Returns whether the turns already exceed their time, because steps take longer than in the warm-up. Equal on every
// rank.
bool is_late(const World& world, const Meter& meter, const Candidates& candidates, double seconds) {
  double spent = meter.seconds();
  world.maximum({&spent, 1});
  return spent > kSlack * seconds * static_cast<double>(candidates.size());
}

// `seconds`: requested, for each candidate.
void take_turns(const World& world, Candidates& candidates, const Batch& batch, const Turns& turns, double seconds,
                Timeline& timeline, Meter& meter) {
  const auto steps = static_cast<double>(turns.count * candidates.size() * turns.steps);
  std::uint64_t step = 0;
  meter.begin();
  for (std::size_t turn = 0; turn < turns.count && (turn == 0 || !is_late(world, meter, candidates, seconds)); ++turn)
    for (Candidate& candidate : candidates) {
      if (meter.due())
        meter.show("all-reduce " + candidate.name, static_cast<double>(step) / steps,
                   fmt::format("{} steps", candidate.seconds.size()));
      world.barrier();  // without all-reduces, ranks drift apart
      candidate.energy.begin_steps();
      for (std::size_t i = 0; i < turns.steps; ++i) {
        timeline.begin_step(++step);
        make_step(candidate, batch);
      }
      candidate.replica.step->finish();
      candidate.energy.end_steps();
      candidate.turns.push_back(candidate.replica.ledger.close(world));
    }
  meter.clear();
  for (Candidate& candidate : candidates) {
    candidate.used = candidate.energy.total(world);
    world.maximum(candidate.seconds);
    candidate.accounts = typical_accounts(candidate.turns, candidate.seconds);
    world.sum(candidate.compute);
    for (double& own : candidate.compute) own /= world.size();
  }
}

// Runs after the measurement, which it would disturb. All ranks compute at the same time, as in a step.
StepProfile profile(const World& world, Candidate& candidate, const BenchStepOptions& options, const Batch& batch) {
  const StepTimes mean = candidate.accounts.mean();
  const auto of_a_step = [&](StepTimes::Part part) { return mean.seconds[part] / static_cast<double>(mean.steps); };
  const auto none = make_all_reduce("none", world, candidate.replica.model.device());
  world.barrier();
  StepProfile found{.model = network_name(options.model),
                    .batch = options.batch,
                    .ranks = static_cast<std::size_t>(world.size()),
                    .length = length_of(candidate.replica.model.graph()),
                    .input_seconds = of_a_step(StepTimes::input),
                    .optimizer_seconds = of_a_step(StepTimes::optimizer),
                    .layers = profile_layers(candidate.replica.model, batch, kProfileSeconds),
                    .embedding = profile_embedding(candidate.replica.model, batch,
                                                   *none)};  // after the layers' passes for this batch
  // Between passes of the same layer caches are warmer than in a step, and a GPU has no graph of all layers.
  const double scale = of_a_step(StepTimes::compute) / (found.forward_seconds() + found.backward_seconds());
  for (LayerProfile& layer : found.layers) layer.scale(scale);
  return found;
}

// A step's work on all ranks.
struct StepWork {
  std::size_t samples;
  SampleUnit unit;
  Utilization utilization;
};

// Seconds, and images or tokens per second. Medians, so that disturbed steps do not count.
struct Summary {
  Summary(const Candidate& c, const StepWork& work)
      : median_step(median(c.seconds)),
        shortest_step(*std::ranges::min_element(c.seconds)),
        compute(median(c.compute)),
        speed(work.unit.count(work.samples) / median_step),
        mfu(work.utilization.share(work.samples, median_step)) {}

  double median_step, shortest_step, compute, speed;
  std::optional<double> mfu;
};

void print(const Candidates& candidates, const StepWork& work) {
  for (const Candidate& c : candidates)
    fmt::print("{}, buckets of up to {}\n", c.all_reduce->info().description, c.buckets);
  const bool knows_peak = work.utilization.peak_flops_per_second.has_value();
  fmt::print("{:<12} {:>8} {:>12} {:>12} {:>12} {:>12}{}\n", "all-reduce", "steps", "median ms", "minimum ms",
             "compute ms", fmt::format("{}/s", work.unit.name), knows_peak ? "     MFU" : "");
  for (const Candidate& c : candidates) {
    const Summary found(c, work);
    fmt::print("{:<12} {:>8} {:>12.3f} {:>12.3f} {:>12.3f} {}{}\n", c.name, c.seconds.size(), 1e3 * found.median_step,
               1e3 * found.shortest_step, 1e3 * found.compute,
               emphasized(stdout, Emphasis::headline, fmt::format("{:>12.0f}", found.speed)),
               found.mfu ? fmt::format(" {:>5.1f} %", 100 * *found.mfu) : "");
  }
  if (knows_peak) fmt::print("MFU: model FLOPs utilization, of {}\n", work.utilization.peak_text());
  for (const Candidate& c : candidates) {
    fmt::print("\nall-reduce {}: {}", c.name, ledger_table(c.accounts, c.used));
    if (const std::string late = lateness_line(c.accounts); !late.empty()) fmt::print("  {}\n", late);
    if (c.on_gpu || c.used.unknown.empty()) fmt::print("  {}\n", energy_line(c.used, c.accounts.mean()));
  }
}

// Prints how much all-reduces slow down concurrent computation, because they use the same cores, caches and memory.
void print_slow_down(const Candidates& candidates, std::size_t steps_per_turn) {
  const auto alone = std::ranges::find_if(candidates, [](const Candidate& c) { return !c.all_reduce->info().reduces; });
  if (alone == candidates.end()) return;
  fmt::print("\n");
  for (const Candidate& c : candidates)
    if (c.all_reduce->info().reduces)
      fmt::print("{}\n", compute_slow_down(alone->compute, c.compute, steps_per_turn, c.name));
}

nlohmann::json row(const Candidate& c, const World& world, const BenchStepOptions& options, const StepWork& work) {
  const Summary found(c, work);
  nlohmann::json json{{"model", network_name(options.model)},
                      {"batch", options.batch},
                      {"ranks", world.size()},
                      {"algorithm", c.options.all_reduce},
                      {"strategy", c.strategy},
                      {"buckets", c.buckets},
                      {"steps", c.seconds.size()},
                      {"median_seconds", found.median_step},
                      {"min_seconds", found.shortest_step},
                      {"compute_seconds", found.compute},
                      {work.unit.speed_name(), found.speed},
                      {"ledger", ledger_json(c.accounts, c.used)},
                      {"energy", energy_json(c.used, c.accounts.mean())}};
  if (found.mfu) json["mfu"] = *found.mfu;
  if (options.shards > 0) json["checksum"] = fmt::format("{:016x}", c.after_first_steps);
  return json;
}

void check_consistent(const World& world, const BenchStepOptions& options, const CheckpointHeader* from) {
  Agreement agreement(world);
  add_configuration(agreement, options.configuration);
  if (from != nullptr) agreement.add("the checkpoint", description(*from));
  if (options.shards > 0) agreement.add("--threads", options.device.threads);
  agreement.add("--timeline, given or not,", !options.timeline.file.empty());
  agreement.check();
}

}  // namespace

void bench_step(const World& world, const BenchStepOptions& given) {
  check_same_command(world, "bench step");
  BenchStepOptions options = given;
  std::optional<TrainedNetwork> trained;
  if (!options.from.empty()) {
    trained = read_trained_network(options.from, "raw", 1);
    if (trained->checkpoint().optimizer.empty())
      fail("{} is a mean of checkpoints, which has no optimizer state: use a run's own checkpoint",
           trained->file.path().string());
    take_network(options, *trained);
    options.optimizer.kind = trained->checkpoint().optimizer;
  }
  take_default_task(options);
  options.global_batch = options.batch * static_cast<std::size_t>(world.size());
  global_batch_of(world, options);  // throws Error if the shards do not fit
  check_consistent(world, options, trained ? &trained->checkpoint() : nullptr);
  auto device = open_device(world, options.device);
  const std::string warning = device_warning(world, *device);
  Activity activity;
  RunRecord record(world, options, activity);
  record.timeline.claim(world);
  std::optional<Data> data;
  if (!options.data.files.empty()) data.emplace(options);
  const Graph graph = graph_of(options, trained ? &*trained : nullptr, data ? &*data : nullptr);
  device =
      keep_faster_plans(world, options.device, std::move(device), graph, network_name(options.model), options.batch);
  report_memory(world, options, graph, *device);
  const StepWork work{options.global_batch, SampleUnit(length_of(graph)), measure_utilization(world, *device, graph)};
  Candidates candidates;
  for (const std::string& all_reduce : options.all_reduces)
    for (const std::string& strategy : options.strategies)
      candidates.emplace_back(options, all_reduce, strategy, world, *device, graph, record);

  const Batch batch = data ? read_batch(options, world, *data) : random_batch(options, world, graph);
  for (Candidate& candidate : candidates) candidate.replica.step->hooks.peek_next = [&batch] { return &batch; };
  const OnError abandon_all_reduces(
      [&] { std::ranges::for_each(candidates, [](auto& c) { c.all_reduce->abandon(); }); });
  Meter meter(world.root(), Meter::Style::bar);
  const Turns turns = warm_up(world, candidates, batch, trained ? &*trained : nullptr, options.seconds, meter);
  take_turns(world, candidates, batch, turns, options.seconds, record.timeline, meter);
  const std::string timeline_text = record.timeline.write(world);
  auto peak_memory = static_cast<double>(peak_memory_bytes());
  world.maximum(std::span(&peak_memory, 1));
  const auto memory = static_cast<std::size_t>(peak_memory);
  const auto gpu_memory = gpu_memory_use(world, candidates.front().replica.model, candidates.front().replica.optimizer);
  StepProfile profiled;
  if (!options.json.empty()) profiled = profile(world, candidates.front(), options, batch);
  if (!world.root()) return;

  fmt::print("{}, {} rank{} x {}, {}\n", options.model, world.size(), world.size() == 1 ? "" : "s",
             graph.samples_text(options.batch), device->info().description);
  if (data) fmt::print("with samples of {}\n", printable(name_of(options.data)));
  if (trained) {
    for (const std::string& line : trained->damaged) fmt::print("{}\n", printable(line));
    fmt::print("with the weights and the state of {} after {} steps, from {}\n",
               printable(trained->checkpoint().optimizer), trained->checkpoint().run.step,
               printable(trained->file.path().string()));
  }
  const std::string mark = warning_mark();
  if (!warning.empty()) fmt::print("{}{}\n", mark, warning);
  fmt::print("at most {} of memory on any rank\n", format_bytes(memory));
  if (gpu_memory) fmt::print("at most {}\n", to_string(*gpu_memory));
  for (const Candidate& c : candidates)
    if (const std::string text = unused_wire(*c.all_reduce, parse_wire_type(options.wire)); !text.empty())
      fmt::print("{}{}\n", mark, text);
  print(candidates, work);
  print_slow_down(candidates, turns.steps);
  if (options.shards > 0)
    fmt::print(
        "after {} steps the checksum of weights and optimizer state is {:016x}, on any number of ranks with this "
        "global "
        "batch and --threads {}\n",
        kFirstSteps, candidates.front().after_first_steps, options.device.threads);
  if (!timeline_text.empty()) fmt::print("{}\n", timeline_text);
  if (options.json.empty()) return;
  nlohmann::json rows;
  for (const Candidate& c : candidates) rows.push_back(row(c, world, options, work));
  nlohmann::json json{{"version", ANNULUS_VERSION},
                      {"device", device->info().description},
                      {"peak_memory_bytes", memory},
                      {"rows", rows},
                      {"trained_steps", trained ? trained->checkpoint().run.step : 0},
                      {"profile", to_json(profiled)}};
  if (gpu_memory) json["gpu_memory_bytes"] = to_json(*gpu_memory);
  if (const auto& peak = work.utilization.peak_flops_per_second) json["peak_flops_per_second"] = *peak;
  write_json(options.json, FileKind::step_benchmark, json);
}

}  // namespace annulus
