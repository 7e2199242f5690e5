#include <fmt/format.h>

#include <memory>

#include "collectives/all_reduce.h"
#include "src/bench/bench_all_reduce.h"
#include "src/bench/bench_input.h"
#include "src/bench/bench_links.h"
#include "src/bench/bench_noise.h"
#include "src/bench/bench_step.h"
#include "src/cli/choices.h"
#include "src/cli/commands.h"
#include "src/cli/common_options.h"
#include "src/cli/numbers.h"
#include "src/cli/train_options.h"
#include "src/data/dataset.h"
#include "src/onnx/network_file.h"

namespace annulus {

namespace {

// Adds options for benchmarks that measure a table's rows in turns.
template <class Options>
void add_table_options(CLI::App& command, Command& chosen, Options& options) {
  command.add_option("--seconds", options.seconds, "Seconds to measure each row")
      ->transform(number_above(0))
      ->capture_default_str();
  add_json_option(command, chosen, options.json, "JSON file to write the table to");
  add_overwrite_option(command, options.overwrite);
}

void add_bench_input(CLI::App& bench, Command& chosen) {
  auto* input = bench.add_subcommand("input", "Time reading and preparing images");
  auto options = std::make_shared<BenchInputOptions>();
  auto& o = *options;
  add_data_option(*input, o.data);
  input->add_option("--split", o.split, "Split of the data: train, validation or test")
      ->check(one_of({"train", "validation", "test"}))
      ->capture_default_str();
  input->add_option("--batch", o.batch, "Batch size per rank")->transform(whole_number(1))->capture_default_str();
  input->add_option("--seconds", o.seconds, "Seconds to measure")->transform(number_above(0))->capture_default_str();
  input->add_option("--seed", o.seed, "Random seed (sample order, augmentation)")
      ->transform(kSeed)
      ->capture_default_str();
  add_json_option(*input, chosen, o.json, "JSON file to write the result to");
  add_overwrite_option(*input, o.overwrite);
  add_input_options(*input, o.data, Purpose::training);
  input->get_option("--workers")->description("Reader threads per rank; 0: one");
  input->callback([&chosen, options] {
    chosen.run = [options](const World& world, Watchdog&) {
      expect_replaceable(world, {{options->json, FileKind::input_benchmark}}, data_files(options->data.files),
                         options->overwrite);
      bench_input(world, *options);
      return 0;
    };
  });
}

void add_bench_noise(CLI::App& bench, Command& chosen) {
  auto* noise = bench.add_subcommand(
      "noise", "Measure the OS noise of this machine: the time that synchronized ranks lose to it");
  auto options = std::make_shared<BenchNoiseOptions>();
  auto& o = *options;
  noise->add_option("--step", o.step_ms, "Milliseconds of computing per step")
      ->transform(number_from(0.1, 1e5))
      ->capture_default_str();
  add_threads_option(*noise, o.threads);
  add_table_options(*noise, chosen, o);
  noise->callback([&chosen, noise, options] {
    options->configuration = noise->config_to_str(true, false);
    chosen.run = [options](const World& world, Watchdog&) {
      expect_replaceable(world, {{options->json, FileKind::noise_benchmark}}, {}, options->overwrite);
      bench_noise(world, *options);
      return 0;
    };
  });
}

constexpr const char* kAllReduceTable =
    "Time the all-reduce of an array, a reduce-scatter or an all-gather\n"
    "All results are compared with the exact ones. The columns, for N ranks:\n"
    "median, minimum  over the calls; a call takes as long as on the slowest rank\n"
    "fast, slow rank  the shortest and longest of the ranks' own median times\n"
    "algbw            bytes of the whole array / median\n"
    "busbw            algbw x 2(N-1)/N for all-reduce, algbw for broadcast, algbw x (N-1)/N otherwise, as nccl-tests "
    "defines it: "
    "comparable with a link's bandwidth, for any N\n"
    "wrong            wrong elements on all ranks; exit status 1 if there are any";

void add_bench_all_reduce(CLI::App& bench, Command& chosen) {
  auto* reduce = bench.add_subcommand("all-reduce", kAllReduceTable);
  auto options = std::make_shared<BenchAllReduceOptions>();
  auto sizes =
      std::make_shared<std::vector<std::string>>(std::vector<std::string>{"4KiB", "64KiB", "1MiB", "16MiB", "64MiB"});
  auto& o = *options;
  o.algorithms = {"auto", "message-ring", "mpi"};
  reduce->add_option("--sizes", *sizes, "Array sizes, or ranges FROM:TO:FACTOR, such as 8:64MiB:2")
      ->delimiter(',')
      ->type_name("SIZE")
      ->default_str("4KiB,64KiB,1MiB,16MiB,64MiB");
  reduce->add_option("--verb", o.verb, "all-reduce, reduce-scatter, all-gather or broadcast (from rank 0)")
      ->check(one_of({"all-reduce", "reduce-scatter", "all-gather", "broadcast"}))
      ->capture_default_str();
  reduce
      ->add_option("--algorithms", o.algorithms,
                   "All-reduce algorithms, as in annulus train --all-reduce; mpi has all-reduces and broadcasts only")
      ->check(one_of(all_reduce_names()))
      ->delimiter(',')
      ->default_str("auto,message-ring,mpi");
  add_wire_option(*reduce, o.wire);
  add_device_options(*reduce, o.device);
  add_table_options(*reduce, chosen, o);
  reduce->callback([&chosen, reduce, options, sizes] {
    options->sizes_bytes = parse_sizes("--sizes", *sizes, byte_size(1, std::uint64_t{1} << 40));
    if (options->verb != "all-reduce" && reduce->count("--algorithms") == 0)
      options->algorithms = options->verb == "broadcast" ? std::vector<std::string>{"mpi"}
                                                         : std::vector<std::string>{"auto", "message-ring"};
    options->configuration = reduce->config_to_str(true, false);
    chosen.device = options->device.device;
    chosen.run = [options](const World& world, Watchdog&) {
      expect_replaceable(world, {{options->json, FileKind::all_reduce_benchmark}}, {}, options->overwrite);
      bench_all_reduce(world, *options);
      return 0;
    };
  });
}

void add_bench_links(CLI::App& bench, Command& chosen) {
  auto* links = bench.add_subcommand(
      "links",
      "Time messages between each two ranks\n"
      "Messages are between host memory, by MPI, one pair of ranks at a time. Latency is half the round trip of 8 "
      "bytes, "
      "bandwidth --size / half the round trip. With one rank on each host (mpirun --map-by ppr:1:node) the network is "
      "measured.");
  auto options = std::make_shared<BenchLinksOptions>();
  auto& o = *options;
  links->add_option("--size", o.bytes, "Size of the messages whose bandwidth is measured")
      ->transform(byte_size(1, std::uint64_t{1} << 30))
      ->type_name("SIZE")
      ->default_str("4MiB");
  add_table_options(*links, chosen, o);
  links->get_option("--seconds")->description("Seconds to measure each pair of ranks");
  links->callback([&chosen, links, options] {
    options->configuration = links->config_to_str(true, false);
    chosen.run = [options](const World& world, Watchdog&) {
      expect_replaceable(world, {{options->json, FileKind::links_benchmark}}, {}, options->overwrite);
      bench_links(world, *options);
      return 0;
    };
  });
}

// What a step computes.
void add_step_work_options(CLI::App& step, BenchStepOptions& s) {
  step.add_option("--model", s.model, model_help())->check(network())->capture_default_str();
  step.add_option("--batch", s.batch, "Batch size per rank")->transform(whole_number(1))->capture_default_str();
  step.add_option("--shards", s.shards, "Compute the global batch in N shards, as annulus train does; 0: off")
      ->transform(whole_number(0))
      ->capture_default_str();
  add_image_option(step, s.image, kMostPixels, "28x28x1");
  step.add_option("--classes", s.classes, "Number of classes")
      ->transform(whole_number(1, kMostClasses))
      ->capture_default_str();
  step.add_option("--length", s.data.length, "Tokens in a window, for models that read text; 0: the model's")
      ->transform(whole_number(0, kMostLength))
      ->capture_default_str();
  step.add_option("--vocabulary", s.vocabulary, "Number of tokens, for models that read text; 0: the model's")
      ->transform(whole_number(0, kMostClasses))
      ->capture_default_str();
  step.add_option("--from", s.from,
                  "Checkpoint (file or run folder) to take weights, optimizer state, model, image and classes from")
      ->type_name("FILE");
  auto* data = step.add_option("--data", s.data.files,
                               "Data files from annulus import, to train on a batch of them instead of a random one")
                   ->type_name("FILE");
  for (const char* given : {"--image", "--classes", "--vocabulary", "--from"}) data->excludes(step.get_option(given));
  add_size_options(step, s.model, s.data.length);
  for (const char* given : {"--layers", "--width", "--heads", "--context"})
    step.get_option(given)->excludes(step.get_option("--from"));
  add_optimizer_option(step, s.optimizer)->excludes(step.get_option("--from"));
}

void add_step_options(CLI::App& step, Command& chosen, BenchStepOptions& s) {
  add_step_work_options(step, s);
  add_recompute_option(step, s.recompute);
  add_table_options(step, chosen, s);
  step.add_option("--all-reduce", s.all_reduces,
                  fmt::format("{}, or none (no communication). Several are measured in turns", kAllReduceHelp))
      ->group("All-reduce")
      ->check(one_of(all_reduce_names()))
      ->delimiter(',')
      ->default_str("auto");
  step.add_option("--strategy", s.strategies,
                  "Strategies, as in annulus train --strategy: synchronous, sharded, or both in turns")
      ->group("All-reduce")
      ->check(one_of({"synchronous", "sharded"}))
      ->delimiter(',')
      ->default_str("synchronous");
  add_wire_option(step, s.wire)->group("All-reduce");
  add_bucket_options(step, s.buckets);
  add_device_options(step, s.device);
  add_timeline_options(step, s.timeline);
}

void add_bench_step(CLI::App& bench, Command& chosen) {
  auto* step = bench.add_subcommand("step", "Time the training step on random samples, or on those of data files");
  auto step_options = std::make_shared<BenchStepOptions>();
  add_step_options(*step, chosen, *step_options);
  step->callback([&chosen, step, step_options] {
    if (step_options->shards > 0 &&
        (step_options->all_reduces != std::vector<std::string>{"auto"} || step_options->wire != "fp32"))
      throw CLI::ValidationError("--shards", "sums in an order of its own: remove --all-reduce and --wire");
    // As train does: a step's bits depend on the number of threads, whose default depends on the number of ranks.
    if (step_options->shards > 0 && step_options->device.threads == 0) step_options->device.threads = 1;
    step_options->configuration = step->config_to_str(true, false);
    if (!step_options->from.empty() && step->count("--model") == 0) step_options->model.clear();
    if (!step_options->from.empty() || is_network_file(step_options->model)) {
      if (step->count("--image") == 0) step_options->image.clear();
      if (step->count("--classes") == 0) step_options->classes = 0;
    }
    chosen.device = step_options->device.device;
    chosen.run = [step_options](const World& world, Watchdog&) {
      expect_replaceable(
          world, {{step_options->json, FileKind::step_benchmark}, {step_options->timeline.file, FileKind::timeline}},
          {step_options->from}, step_options->overwrite);
      bench_step(world, *step_options);
      return 0;
    };
  });
}

}  // namespace

void add_bench(CLI::App& app, Command& chosen) {
  auto* bench = app.add_subcommand("bench", "Run a benchmark");
  bench->require_subcommand(0, 1);
  add_bench_input(*bench, chosen);
  add_bench_noise(*bench, chosen);
  add_bench_all_reduce(*bench, chosen);
  add_bench_links(*bench, chosen);
  add_bench_step(*bench, chosen);
}

}  // namespace annulus
