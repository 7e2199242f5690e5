#include "src/train/train.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <optional>
#include <span>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/on_error.h"
#include "src/checkpoint/restore.h"
#include "src/io/atomic_file.h"
#include "src/io/folder_claim.h"
#include "src/io/json.h"
#include "src/io/printable.h"
#include "src/io/standard_output.h"
#include "src/job/consistency.h"
#include "src/job/launched_rank.h"
#include "src/job/signals.h"
#include "src/onnx/network_file.h"
#include "src/step/bucket_plan.h"
#include "src/step/pipeline_schedule.h"
#include "src/step/replicas.h"
#include "src/step/verifier.h"
#include "src/train/announce.h"
#include "src/train/changed_options.h"
#include "src/train/control.h"
#include "src/train/dry_run.h"
#include "src/train/faster_plans.h"
#include "src/train/initial_weights.h"
#include "src/train/survival.h"
#include "src/train/take_over.h"
#include "src/train/training_run.h"
#include "src/train/training_setup.h"
#include "src/train/verification.h"
#include "src/train/whitening.h"

namespace annulus {
namespace {

using Phase = Activity::Phase;

// A difference would make later collectives hang or corrupt data.
void check_consistent(const TrainingInputs& inputs) {
  const TrainOptions& options = inputs.options;
  Agreement agreement(inputs.world);
  agreement.add("--resume", options.resume);
  agreement.add("--take-over", options.take_over);
  agreement.add("--timeline, given or not,", !options.timeline.file.empty());
  agreement.add("--data-changed", options.data_changed);
  if (options.shards > 0) agreement.add("--threads", options.device.threads);
  for (const DataField& field : data_fields(inputs.training->info(), inputs.samples))
    agreement.add(field.name, field.value);
  agreement.check();
}

void choose_plans(TrainingInputs& inputs) {
  const TrainOptions& options = inputs.options;
  inputs.device = keep_faster_plans(inputs.world, options.device, std::move(inputs.device),
                                    graph_of(inputs.replicas(), options, inputs.network.onnx, inputs.task),
                                    network_name(options.model), inputs.largest_pass());
}

// A run writes only to the output folder. A folder holds one run, so earlier results are never lost. A dry run only
// looks, and claims nothing.
std::optional<FolderClaim> claim_output(const TrainingInputs& inputs) {
  const TrainOptions& options = inputs.options;
  const CheckpointFolder checkpoints = inputs.checkpoints();
  const bool adopt = !checkpoints.empty() || options.overwrite;
  const std::string advice = "choose another --out", adoption = "give --overwrite to write to this one";
  std::optional<FolderClaim> claim;
  if (options.dry_run)
    expect_claimable(options.out, adopt, advice, adoption);
  else
    claim.emplace(options.out, adopt, advice, adoption);
  if (!options.resume && !checkpoints.empty())  // checked after the claim: no other run can add one now
    fail("{} already has checkpoints of an earlier run: continue it with --resume, or choose another --out",
         options.out.string());
  if (claim) discard_requests(options.out);
  return claim;
}

std::optional<Resumption> resumption_of(const TrainingInputs& inputs) {
  const TrainOptions& options = inputs.options;
  if (!options.resume) return std::nullopt;
  return find_resumption(
      inputs.replicas(), inputs.checkpoints(),
      {network_name(options.model), inputs.network.onnx, to_string(inputs.task.loss), options.seed,
       inputs.training->info().labels, inputs.sample_order(), data_fields(inputs.training->info(), inputs.samples),
       options.data_changed, options.shards, static_cast<std::size_t>(options.device.threads)});
}

bool has_as_many_ranks(const TrainingInputs& inputs, const RunState& state) {
  return state.ranks == static_cast<std::uint64_t>(inputs.world.size());
}

// Measured again, the crossover might differ, and with it the last bits of all-reduces.
std::optional<std::size_t> earlier_crossover(const TrainingInputs& inputs, const RunState& state) {
  return has_as_many_ranks(inputs, state) ? state.crossover : std::nullopt;
}

// Other stages may have other last bits, too.
std::vector<std::string> earlier_cuts(const TrainingInputs& inputs, const std::optional<Resumption>& resumption) {
  if (!resumption || !has_as_many_ranks(inputs, resumption->state)) return {};
  return resumption->cuts;
}

// Chooses the decoder, unless the resumed run did: pixels would differ.
void choose_decoder(TrainingInputs& inputs, RunRecord& record, RunState& state) {
  const std::string report = inputs.choose_decoder(state.gpu_decodes);
  if (report.empty()) return;
  state.gpu_decodes = inputs.training_plan.make_decoder != nullptr;
  if (inputs.world.root()) record.progress.line(report);
}

// The last batches of an epoch are smaller; a resumed epoch's may differ.
void check_passes(const TrainingInputs& inputs, const RunState& state) {
  const std::size_t size = inputs.training->info().size;
  for (const std::size_t left : {size - state.cursor.position, size})
    for (const std::size_t images : {std::min(inputs.global_batch, left), left % inputs.global_batch})
      expect_same_passes(inputs.replicas(), inputs.options, images);
}

// The same on all ranks, any of which may have to write the results in the end. Collective.
std::string date_and_time(const World& world) {
  auto now = std::chrono::floor<std::chrono::milliseconds>(std::chrono::system_clock::now());
  world.broadcast(std::as_writable_bytes(std::span(&now, 1)));
  return fmt::format("{:%FT%T}Z", now);
}

// Collective.
void fill_in(const TrainingInputs& inputs, const Replica& replica, RunResult& result) {
  const std::string now = date_and_time(inputs.world);
  if (result.began.empty()) result.began = now;
  result.ranks = inputs.world.size();
  result.servers = servers_of(inputs.options.strategy);
  result.global_batch = inputs.global_batch;
  result.unit = SampleUnit(inputs.training->info().length);
  result.utilization = measure_utilization(inputs.world, *inputs.device, replica.model.graph());
  result.verifies = verifies(inputs, replica, result.utilization);
  result.schedule = inputs.schedule.description();
  result.device = inputs.device->info().description;
  result.deterministic = inputs.options.device.deterministic == "on";
  result.all_reduce = replica.all_reduce.info().description;
  result.buckets = to_string(resolve(inputs.options.buckets, replica.model.parameters(), replica.all_reduce));
  if (!replica.plan) return;
  result.pipeline = PipelineResult{.cuts = replica.plan->cuts,
                                   .milliseconds = {},
                                   .bound = pipeline_bound(replica.plan->nodes.size(), inputs.options.accumulate)};
  for (const StageCost& stage : replica.plan->expected) result.pipeline->milliseconds.push_back(1e3 * stage.seconds);
}

std::optional<double> last_rate(const RunResult& result) {
  if (result.earlier_epochs.empty()) return std::nullopt;
  const nlohmann::json& epoch = result.earlier_epochs.back();
  return member_or(epoch, "learning_rate", std::numeric_limits<double>::quiet_NaN());
}

// Names the options that have changed since the checkpoint, and what this does to the learning rate. On rank 0.
void report_changes(const TrainingInputs& inputs, const RunState& state, RunRecord& record) {
  const std::filesystem::path file = inputs.options.out / "config.toml";
  if (!std::filesystem::is_regular_file(file)) return;
  std::ifstream stream(file);
  const std::string before{std::istreambuf_iterator<char>(stream), {}};
  const std::string changes = changed_options(before, inputs.options.configuration);
  if (changes.empty()) return;
  record.progress.line(printable(fmt::format("options changed since the checkpoint: {}", changes)));
  const double epoch = static_cast<double>(state.cursor.epoch) +
                       static_cast<double>(state.cursor.position) / static_cast<double>(inputs.training->info().size);
  const double rate = inputs.schedule.rate(epoch, state.rate_reductions), old = last_rate(record.result).value_or(rate);
  constexpr double kJump = 1.1;  // more than a schedule changes the rate from one step to the next
  if (std::max(rate, old) > kJump * std::min(rate, old))
    record.progress.line(fmt::format("the learning rate jumps from {:.4g}, of the last epoch, to {:.4g}", old, rate));
}

void report_resumption(const TrainingInputs& inputs, const Resumption& resumption, RunRecord& record) {
  const RunState& state = resumption.state;
  record.result.earlier_seconds = static_cast<double>(state.milliseconds) / 1e3;
  if (inputs.world.root() || inputs.options.survival.on)  // any rank may have to write the results in the end
    read_earlier_results(inputs.options.out / "results.json", state.cursor.epoch, state.step, record.result);
  if (!inputs.world.root()) return;
  for (const std::string& line : resumption.stored->damaged) record.progress.line_anyway(line);
  if (const auto& difference = resumption.data_difference) {
    record.result.data_changes.push_back({{"step", state.step}, {"difference", *difference}});
    record.progress.line(fmt::format("the data was changed (--data-changed): {}", *difference));
  }
  report_changes(inputs, state, record);
  record.progress.line(fmt::format("resuming after {} steps: epoch {}, {} {} of {}", state.step, state.cursor.epoch + 1,
                                   inputs.training->info().is_text() ? "window" : "image", state.cursor.position,
                                   inputs.training->info().size));
}

// Returns the last results.json; no object if it cannot be read.
nlohmann::json results_of(const TrainOptions& options) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(options.out / "results.json", error)) return {};  // a pipe would block
  std::ifstream stream(options.out / "results.json");
  return try_parse_json(stream);
}

// The run was complete before it was resumed: the results do not change. On rank 0.
void report_nothing_to_do(const TrainingInputs& inputs, const RunState& state) {
  const TrainOptions& options = inputs.options;
  nlohmann::json results = results_of(options);
  if (results.is_object() && member_or<std::string>(results, "status", "") != "complete" &&
      !options.dry_run) {  // killed after the last checkpoint
    results["status"] = "complete";
    write_json(options.out / "results.json", FileKind::run_results, results);
  }
  const std::string end = inputs.early_end(state);
  const bool steps_done = options.max_steps > 0 && state.step >= options.max_steps;
  const std::string raise = steps_done ? "raise --epochs and --max-steps" : "raise --epochs";
  print_anyway(fmt::format("nothing to do: this run is complete after {} steps, {} of {} epochs; to continue, {}",
                           state.step, state.cursor.epoch, options.epochs,
                           end.empty() ? raise : fmt::format("change {}", end)));
  const EvaluatedSplits& evaluation = inputs.evaluation;
  if (!evaluation.during) return;
  fmt::print("{} {}  ({}){}\n", evaluation.during->name, headline(*state.score), details(*state.score),
             state.best ? ", best " + headline(*state.best) : "");
  if (!evaluation.test) return;
  const Measure first = measures_of(inputs.training->info()).front();
  const nlohmann::json& value = results["test_" + to_string(first)];
  fmt::print("test {}, with the best weights\n",
             to_string(first, value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN()));
}

// Before another job can continue the run, choose another best checkpoint and remove this one.
void pass_on_best(const TrainingInputs& inputs) {
  if (inputs.world.root() && inputs.options.on_complete) inputs.options.on_complete(inputs.checkpoints().best_file());
}

// Writes the results to --json, whether or not this job has changed them. On rank 0.
void copy_results(const TrainingInputs& inputs) {
  const TrainOptions& options = inputs.options;
  if (inputs.world.root() && !options.json.empty())
    write_json(options.json, FileKind::run_results, results_of(options));
}

// Whether the test images, which are evaluated at the end of a complete run, have been. Collective.
bool is_tested(const TrainingInputs& inputs) {
  std::array<std::int64_t, 1> tested{!inputs.evaluation.test};
  if (inputs.world.root() && inputs.evaluation.test) tested[0] = results_of(inputs.options).contains("test_loss");
  inputs.world.broadcast(std::as_writable_bytes(std::span(tested)));
  return tested[0] != 0;
}

// Sets the weights of --whiten's layer on every rank. Returns a line for the user. Collective.
std::string whiten(const TrainingInputs& inputs, Model& model) {
  const std::string& layer = inputs.options.whiten;
  const Whitening whitening(model.graph(), layer);
  std::map<std::string, std::vector<float>> values;
  if (inputs.replicas().root())
    values[whitening.weight()] = whitening_weights(whitening, *inputs.training, inputs.training_plan);
  set_initial_weights(inputs.replicas(), values, model);
  return fmt::format("initial weights of {} from the patches of {} training images", layer,
                     std::min(kWhiteningImages, inputs.training->info().size));
}

// Sets the initial weights of every rank unless they are random. Returns lines for the user. Collective.
std::vector<std::string> initial_weights(const TrainingInputs& inputs, Model& model) {
  const std::string& weights = inputs.options.weights;
  std::vector<std::string> lines = inputs.network.notes;
  if (weights != "auto" && !inputs.network.onnx.empty()) {
    std::map<std::string, std::vector<float>> buffers;
    for (const std::string& name : inputs.network.buffers) buffers[name] = inputs.network.weights.at(name);
    set_initial_weights(inputs.replicas(), buffers, model);
  }
  if (weights == "random") return lines;
  if (weights != "auto") {
    std::ranges::move(load_initial_weights(inputs.replicas(), weights, inputs.network.others, model),
                      std::back_inserter(lines));
  } else if (!inputs.network.onnx.empty()) {
    set_initial_weights(inputs.replicas(), inputs.network.weights, model);
    lines.push_back("initial weights from " + inputs.options.model);
  }
  return lines;
}

// For tests.
void inject_into_steps(const World& world, Replica& replica, RunRecord& record, const RunState& state) {
  Step::Hooks& hooks = replica.step->hooks;
  hooks.reduced = [&, next = std::move(hooks.reduced)](std::size_t bucket, DeviceView sum) {
    inject_into(sum, bucket, record.faults, world.rank_in_job(world.rank()), state.step + 1, replica.model.device());
    next(bucket, sum);
  };
  hooks.computed = [&, next = std::move(hooks.computed), done = std::size_t{0}](const BatchPart& part,
                                                                                std::size_t count) mutable {
    if (count <= done) done = 0;  // another part
    inject_into({std::exchange(done, count), count}, record.faults, world.rank_in_job(world.rank()), state.step + 1,
                replica.model);
    next(part, count);
  };
}

// All ranks join rank 0's claim on the run's folder. Collective.
void share(const World& world, const std::filesystem::path& out, std::optional<FolderClaim>& claim) {
  if (claim) claim->share();
  world.barrier();
  if (!claim) claim.emplace(FolderClaim::join(out));
}

// The ranks that were lost before the run begins, in the results.
std::vector<LostRank> lost_ranks(const std::vector<Membership::Loss>& losses) {
  std::vector<LostRank> ranks;
  for (const Membership::Loss& loss : losses)
    ranks.push_back({loss.rank, loss.host, 0, 0, loss.since, 0, loss.excluded});
  return ranks;
}

// Runs to the end, however many ranks are lost on the way. Returns the exit status.
int run_with_survivors(const TrainingInputs& inputs, Replica& replica, RunRecord& record, RunState& state,
                       Survival& survival) {
  while (true) try {
      return TrainingRun(inputs, replica, record, state, &survival).run();
    } catch (const StartAnew&) {
      throw;
    } catch (const ReplicasDiffer& difference) {
      survival.repeat_after(difference);
    } catch (const std::exception&) {
      if (!survival.recover()) throw;
    }
}

// To train with the survivors.
struct Attempt {
  Membership& membership;
  RunStage stage = RunStage::starting;
};

// The statements are the protocol between the ranks: most are collective, so all ranks reach them in this order.
// `attempt`: null if ranks need not survive others.
int train_in(World& world, const TrainOptions& options, Watchdog& watchdog, Attempt* attempt) {
  Activity& activity = watchdog.activity();
  const auto reached = [&](std::string_view stage) {
    inject_at(options.faults, world.rank_in_job(world.rank()), 0, stage);
  };
  StartUp begun;
  begun.mark(StartUp::mpi);
  activity.enter(Phase::comparing);
  check_same_command(world, "train");
  check_configuration(world, options.configuration);
  reached("compared");

  activity.enter(Phase::opening);
  RunRecord record(world, options, activity);
  if (attempt != nullptr) record.result.losses = lost_ranks(attempt->membership.losses());
  StartUp& start_up = record.result.start_up = begun;
  start_up.mark(StartUp::consistency);
  TrainingInputs inputs(world, options, start_up);
  activity.enter(Phase::comparing);
  check_consistent(inputs);
  start_up.mark(StartUp::consistency);

  activity.enter(Phase::tuning);
  if (!inputs.pipeline) choose_plans(inputs);
  start_up.mark(StartUp::tuning);

  activity.enter(Phase::connecting);
  std::optional<FolderClaim> claim;  // rank 0's, or every rank's if any may have to write to the folder in the end
  const auto claim_folder = [&] { claim = claim_output(inputs); };
  if (options.take_over) {
    if (!take_over(world, options.out, record, claim_folder)) return kStoppedExitCode;
  } else if (world.root()) {
    claim_folder();
  }
  if (attempt != nullptr) {
    share(world, options.out, claim);
    attempt->stage = RunStage::claimed;
  }
  reached("claimed");
  std::optional<Resumption> resumption = resumption_of(inputs);
  RunState state = resumption ? resumption->state : RunState{};
  start_up.mark(StartUp::folder);
  const auto all_reduce = open_all_reduce(inputs.replicas(), options, *inputs.device, earlier_crossover(inputs, state));
  const Watchdog::Watched watched(watchdog, all_reduce->progress());
  start_up.mark(StartUp::all_reduce);

  activity.enter(Phase::planning);
  Replica replica(inputs, *all_reduce, record, earlier_cuts(inputs, resumption));
  const OnError abandon([&] { all_reduce->abandon(); });  // freeing GPU memory waits for all-reduces
  start_up.mark(StartUp::network);
  activity.enter(Phase::comparing);
  check_same_network(inputs.replicas(), replica.model);
  start_up.mark(StartUp::consistency);
  activity.enter(Phase::planning);
  replica.plan_networks(inputs);
  start_up.mark(StartUp::network);
  replica.model.parameters().initialize(options.seed);
  world.barrier();  // before rank 0 sets others, because all ranks of a node may have one array of weights
  const bool nothing_to_do = inputs.complete(state) && !inputs.owes_evaluation(state) && is_tested(inputs);
  if (!resumption) {
    activity.enter(Phase::opening);
    for (const std::string& line : initial_weights(inputs, replica.model)) record.progress.line(printable(line));
    if (!options.whiten.empty()) record.progress.line(printable(whiten(inputs, replica.model)));
  }
  replica.optimizer.begin_average();

  if (resumption) {
    activity.enter(Phase::resuming);
    restore(inputs.replicas(), *resumption, replica.model, replica.optimizer,
            replica.step->kept_state().outer_velocity());
    check_replicas(inputs.replicas(), replica.model, replica.optimizer, "after resuming");
    report_resumption(inputs, *resumption, record);
  } else if (options.resume) {
    record.progress.line(fmt::format("nothing to resume in {}: starting a new run", options.out.string()));
  }
  if (nothing_to_do) {
    if (world.root()) report_nothing_to_do(inputs, state);
    activity.enter(Phase::ending);
    pass_on_best(inputs);
    copy_results(inputs);
    return 0;
  }
  reached("planned");
  start_up.mark(StartUp::weights);
  if (options.sync_batch_norm) check_passes(inputs, state);
  activity.enter(Phase::tuning);
  choose_decoder(inputs, record, state);
  start_up.mark(StartUp::tuning);
  fill_in(inputs, replica, record.result);
  start_up.mark(StartUp::peak_speed);
  announce(inputs, replica, record, resumption && world.root() ? resumption->stored->file.header().summing : "");

  if (options.dry_run) {
    const RunState before = state;
    report_dry_run(inputs, replica, before, TrainingRun(inputs, replica, record, state, nullptr).try_steps());
    return 0;
  }
  std::optional<Verifier> verifier;
  if (record.result.verifies)
    verifier.emplace(inputs.replicas(), replica.model, replica.optimizer, *replica.step, activity,
                     options.survival.verify ? options.shards : 0);
  if (!options.faults.empty()) inject_into_steps(world, replica, record, state);
  if (world.root()) write_atomically(options.out / "config.toml", std::as_bytes(std::span(options.configuration)));
  record.timeline.claim(world);
  int status = 0;
  for (LostRank& loss : record.result.losses)
    if (loss.seconds == 0) loss.step = state.step;
  if (attempt != nullptr) {
    Survival survival(attempt->membership, world, inputs, replica, record, state, *claim,
                      verifier ? &*verifier : nullptr);
    status = run_with_survivors(inputs, replica, record, state, survival);
  } else {
    status = TrainingRun(inputs, replica, record, state, nullptr).run();
  }
  activity.enter(Phase::ending);
  if (status == 0) pass_on_best(inputs);
  copy_results(inputs);
  return status;
}

// Reports ranks that were lost before the run began. Returns whether enough are left to start it anew. The same on all
// ranks.
bool are_enough(std::size_t reported, const World& world, const Membership& membership, std::size_t wanted) {
  const auto left = static_cast<std::size_t>(world.size());
  const bool enough = left >= wanted;
  if (!world.root()) return enough;
  const std::string then = enough
                               ? fmt::format("{} rank{} start{} anew", left, left == 1 ? "" : "s", left == 1 ? "s" : "")
                               : fmt::format("fewer ranks than --min-ranks {} are left", wanted);
  for (const Membership::Loss& loss : std::span(membership.losses()).subspan(reported))
    print_anyway(printable(fmt::format("rank {} on {} {} before the first step: {}", loss.rank, loss.host,
                                       loss.excluded ? "was excluded" : "was lost", then)));
  return enough;
}

// Waits until the survivors agree on the losses and on starting the run anew. Returns the stage of the furthest;
// nothing if no rank was lost.
std::optional<RunStage> agree_to_start_anew(const World& world, Attempt& attempt) {
  while (true) try {
      if (!attempt.membership.agree()) return {};
      return exchange_stages(world, attempt.stage).furthest;
    } catch (const Error&) {  // another loss
      if (!world.interrupted()) throw;
    }
}

// A dry run has the same steps, but writes no metrics, timelines and exports.
TrainOptions without_files(TrainOptions options) {
  options.metrics.formats.clear();
  options.timeline.file.clear();
  if (options.on_complete) options.on_complete = [](const std::filesystem::path&) {};
  return options;
}

}  // namespace

int train(const World& everyone, const TrainOptions& options, Watchdog& watchdog) {
  World world = everyone;
  keep_stop_signals_from_computing();
  outlive_reader();
  const bool survives = options.survival.on && world.size() > 1;
  if (survives && mpirun_ends_with_a_rank())
    fail(
        "--survive needs a launcher that does not end the job when a rank dies: scripts/launch or mpirun "
        "--enable-recovery");
  if (options.dry_run) return train_in(world, without_files(options), watchdog, nullptr);
  if (!survives) return train_in(world, options, watchdog, nullptr);
  Membership membership(world, options.survival.lost_after);
  TrainOptions again = options;
  while (true) {
    const std::size_t reported = membership.losses().size();
    Attempt attempt{membership};
    try {
      membership.leave(status_after_output(train_in(world, again, watchdog, &attempt)));
    } catch (const StartAnew&) {
      again.resume = true;
    } catch (const std::exception&) {
      watchdog.activity().enter(Phase::recovering);
      const auto furthest = agree_to_start_anew(world, attempt);
      if (!furthest) {
        membership.fail_everywhere();
        throw;
      }
      again.resume = again.resume || *furthest != RunStage::starting;
    }
    if (!are_enough(reported, world, membership, options.survival.min_ranks)) membership.leave(kStoppedExitCode);
  }
}

}  // namespace annulus
