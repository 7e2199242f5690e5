#include "src/cli.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <memory>

#include "kernels/error.h"
#include "models/zoo.h"
#include "src/bench_all_reduce.h"
#include "src/bench_step.h"
#include "src/data/import.h"
#include "src/doctor.h"
#include "src/options.h"
#include "src/scheduler.h"
#include "src/timeline.h"
#include "src/train.h"

namespace annulus {
namespace {

constexpr int kUsageExitCode = 2;

// A configuration file is flat: its keys are the options of the command that is being run, without the dashes.
class FlatConfig : public CLI::ConfigTOML {
 public:
  explicit FlatConfig(const CLI::App& app) : app_(app) {}

  std::vector<CLI::ConfigItem> from_config(std::istream& stream) const override {
    auto entries = CLI::ConfigTOML::from_config(stream);
    std::vector<std::string> commands;
    for (const auto* app = &app_; !app->get_subcommands().empty(); commands.push_back(app->get_name()))
      app = app->get_subcommands().front();
    for (auto& entry : entries) entry.parents.insert(entry.parents.begin(), commands.begin(), commands.end());
    return entries;
  }

 private:
  const CLI::App& app_;
};

const CLI::AsSizeValue kBytes(true);  // "64KB" is 64,000 bytes, "64KiB" 65,536

// An Slurm task that takes itself for a whole run is worse than none.
void expect_whole_world(const World& world) {
  if (const auto complaint = scheduler_complaint(world.size())) fail("{}", *complaint);
}

void add_device_options(CLI::App& command, DeviceOptions& options) {
  command.add_option("--device", options.device, "What computes: cpu, cuda, or auto, a GPU if every rank has one")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  command
      .add_option("--precision", options.precision,
                  "fp32, tf32, bf16 or fp16; auto: bf16 on a GPU, fp32 on a CPU. Parameters and sums are fp32 in each")
      ->check(CLI::IsMember({"auto", "fp32", "tf32", "bf16", "fp16"}))
      ->capture_default_str();
  command.add_option("--tune", options.tuning,
                     "On a GPU, measure which convolution plans are fastest, and keep what was found in this file");
  command.add_option("--threads", options.threads, "Threads of each rank; 0: as many as it is bound to")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
}

constexpr const char* kAllReduceHelp =
    "Who adds the gradients: auto, direct, hierarchical, ring, message-ring, doubling, mpi (MPI_Allreduce), nccl "
    "(between "
    "GPUs), or none, which does not train but shows what sums cost";

void add_wire_option(CLI::App& command, std::string& wire) {
  command.add_option("--wire", wire, "What messages between nodes are made of; sums are made in fp32 in any case")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}))
      ->capture_default_str();
}

void add_bucket_options(CLI::App& command, BucketOptions& buckets, bool& tune) {
  constexpr std::size_t smallest = 4096, largest = std::size_t{1} << 40;
  const auto parse = [&buckets, &tune](std::string text) {
    buckets.bytes = 0;
    tune = text == "auto";
    if (tune || text == "usual") return;
    try {
      kBytes(text);
      buckets.bytes = std::stoull(text);
    } catch (const std::exception&) {  // it stays too small
    }
    if (buckets.bytes < smallest || buckets.bytes > largest)  // -1 is very large
      throw CLI::ValidationError("--bucket", "give a size of at least 4KiB, such as 1MiB, usual or auto");
  };
  command
      .add_option_function<std::string>(
          "--bucket", parse,
          "Gradients that are sent together, for example 256KiB or 4MiB; usual: an eighth of all, but 64KiB to 4MiB; "
          "auto: what trials say, and --defer too")
      ->type_name("SIZE")
      ->default_str("usual");
  command
      .add_option("--defer", buckets.deferred,
                  "Share of the gradients, those of the uppermost layers, whose sums may go on during the next step's "
                  "forward pass")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
}

void expect_one_choice(const BucketOptions& buckets, bool tune) {
  if (tune && buckets.deferred > 0)
    throw CLI::ValidationError("--defer", "--bucket auto chooses what is deferred: leave it out, or name a size");
}

void add_timeline_options(CLI::App& command, TimelineOptions& options) {
  command
      .add_option("--timeline", options.file,
                  "Write what all ranks did and when, for https://ui.perfetto.dev, to this file")
      ->configurable(false)
      ->group("Timeline");
  command
      .add_option("--timeline-steps", options.steps,
                  fmt::format("So many steps of it, after the first {}", Timeline::kStepsBefore))
      ->check(CLI::PositiveNumber)
      ->capture_default_str()
      ->configurable(false)
      ->group("Timeline");
}

// For the tests, and not in the help.
void add_fault_option(CLI::App& command, std::vector<Fault>& faults) {
  const auto parse = [&faults](const std::string& text) {
    try {
      faults.push_back(parse_fault(text));
    } catch (const Error& error) {
      throw CLI::ValidationError("--inject", error.what());
    }
  };
  command
      .add_option_function<std::vector<std::string>>(
          "--inject", [parse](const std::vector<std::string>& texts) { std::ranges::for_each(texts, parse); })
      ->configurable(false)
      ->group("");
}

std::string model_help() {
  std::string text = "One of:";
  for (const ZooEntry& entry : zoo()) text += fmt::format("\n{:<10}{}", entry.name, entry.description);
  return text;
}

void add_train(CLI::App& app, Command& chosen) {
  auto* command = app.add_subcommand("train", "Train a model");
  auto options = std::make_shared<TrainOptions>();
  auto& o = *options;
  command->add_option("--data", o.data, "Data file, made by annulus import")->required();
  command->add_option("--out", o.out, "Folder for all that the run writes: checkpoint.h5, results.json, config.toml")
      ->required();
  command->add_option("--model", o.model, model_help())->capture_default_str();
  command->add_option("--epochs", o.epochs, "Passes over the training images")->capture_default_str();
  command->add_option("--max-steps", o.max_steps, "Stop after so many steps; 0: no limit")->capture_default_str();

  command->add_option("--batch", o.batch, "Images a step on each rank")
      ->check(CLI::PositiveNumber)
      ->capture_default_str()
      ->group("Training");
  command
      ->add_option("--global-batch", o.global_batch,
                   "Images a step over all ranks, shared as evenly as it goes; where it is not 0, instead of --batch")
      ->capture_default_str()
      ->group("Training");
  command->add_option("--lr", o.rate, "Learning rate, for the gradient's mean over the global batch")
      ->check(CLI::PositiveNumber)
      ->capture_default_str()
      ->group("Training");
  command->add_option("--optimizer", o.optimizer, "sgd, lars or adamw")
      ->check(CLI::IsMember({"sgd", "lars", "adamw"}))
      ->capture_default_str()
      ->group("Training");
  command->add_option("--momentum", o.momentum, "Momentum of SGD and LARS")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str()
      ->group("Training");
  command->add_flag("--nesterov", o.nesterov, "Nesterov's momentum, with sgd")->group("Training");
  command->add_option("--weight-decay", o.weight_decay, "Of the weights, not of biases and batch norm")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str()
      ->group("Training");
  command->add_option("--label-smoothing", o.label_smoothing, "Share of a label that is spread over all classes")
      ->check(CLI::Range(0.0, 0.9))
      ->capture_default_str()
      ->group("Training");
  command->add_option("--seed", o.seed, "Of the first weights and of the order of the images")
      ->capture_default_str()
      ->group("Training");

  command->add_flag("--resume", o.resume, "Go on from the checkpoint in --out; begin anew where there is none")
      ->configurable(false)
      ->group("Checkpoints");
  command->add_option("--checkpoint-every", o.checkpoint_every, "Steps between checkpoints; 0: one an epoch")
      ->capture_default_str()
      ->group("Checkpoints");
  command->add_option("--all-reduce", o.all_reduce, kAllReduceHelp)->capture_default_str();
  add_wire_option(*command, o.wire);
  add_bucket_options(*command, o.buckets, o.tune_buckets);
  add_device_options(*command, o.device);
  add_timeline_options(*command, o.timeline);
  command
      ->add_option("--stall-timeout", o.stall_seconds,
                   "End the job, saying where each rank stands, when nothing moves for so many seconds; 0: never")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  add_fault_option(*command, o.faults);

  command->callback([&chosen, command, options] {
    expect_one_choice(options->buckets, options->tune_buckets);
    options->configuration = command->config_to_str(true, false);
    chosen = [options](const World& world) {
      expect_whole_world(world);
      return train(world, *options);
    };
  });
}

void add_eval(CLI::App& app, Command& chosen) {
  auto* command = app.add_subcommand("eval", "Evaluate a checkpoint");
  auto options = std::make_shared<EvaluateOptions>();
  auto& o = *options;
  command->add_option("--data", o.data, "Data file, made by annulus import")->required();
  command->add_option("--checkpoint", o.checkpoint, "A run's checkpoint.h5")->required();
  command->add_option("--split", o.split, "Which images of the file: train or test")->capture_default_str();
  command->add_option("--batch", o.batch, "Images at once on each rank")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--json", o.json, "Write the result to this file as well");
  add_device_options(*command, o.device);
  command->callback([&chosen, options] {
    chosen = [options](const World& world) {
      expect_whole_world(world);
      evaluate(world, *options);
      return 0;
    };
  });
}

void add_import(CLI::App& app, Command& chosen) {
  auto* command = app.add_subcommand("import", "Make a data file from a data set in another format");
  auto options = std::make_shared<ImportOptions>();
  auto& o = *options;
  command->add_option("file", o.output, "The HDF5 file to make")->required();
  command->add_option("source", o.source, "Folder of the data set")->required();
  command->add_option("--from", o.format, "Its format: idx (as MNIST is distributed, gzip-compressed or not)")
      ->capture_default_str();
  command->add_option("--classes", o.classes, "Names of the classes by label, separated by commas")->delimiter(',');
  command->callback([&chosen, options] {
    chosen = [options](const World& world) {
      if (world.root()) import_data(*options);
      world.barrier();
      return 0;
    };
  });
}

void add_bench(CLI::App& app, Command& chosen) {
  auto* bench = app.add_subcommand("bench", "Measure");
  bench->require_subcommand(1);

  auto* step = bench->add_subcommand("step", "Time the training step on random images");
  auto step_options = std::make_shared<BenchStepOptions>();
  auto& s = *step_options;
  step->add_option("--model", s.model, model_help())->capture_default_str();
  step->add_option("--batch", s.batch, "Images a step on each rank")->check(CLI::PositiveNumber)->capture_default_str();
  step->add_option("--image", s.image, "Height, width and channels")
      ->delimiter('x')
      ->expected(3)
      ->default_str("28x28x1");
  step->add_option("--classes", s.classes, "Classes")->check(CLI::PositiveNumber)->capture_default_str();
  step->add_option("--seconds", s.seconds, "How long to measure each row")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  step->add_option("--json", s.json, "Write the table to this file as well");
  step->add_option("--all-reduce", s.all_reduce,
                   fmt::format("{}; several, separated by commas, take turns", kAllReduceHelp))
      ->delimiter(',')
      ->default_str("auto");
  add_wire_option(*step, s.wire);
  add_bucket_options(*step, s.buckets, s.tune_buckets);
  add_device_options(*step, s.device);
  add_timeline_options(*step, s.timeline);
  step->callback([&chosen, step, step_options] {
    expect_one_choice(step_options->buckets, step_options->tune_buckets);
    step_options->configuration = step->config_to_str(true, false);
    chosen = [step_options](const World& world) {
      expect_whole_world(world);
      bench_step(world, *step_options);
      return 0;
    };
  });

  auto* reduce = bench->add_subcommand("all-reduce", "Time the sum of an array over all ranks");
  auto reduce_options = std::make_shared<BenchAllReduceOptions>();
  auto& r = *reduce_options;
  r.sizes_bytes = {4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20};
  r.algorithms = {"auto", "message-ring", "mpi"};
  reduce->add_option("--sizes", r.sizes_bytes, "Sizes of the array, separated by commas")
      ->delimiter(',')
      ->transform(kBytes)
      ->default_str("4KiB,64KiB,1MiB,16MiB,64MiB");
  reduce->add_option("--algorithms", r.algorithms, "As --all-reduce, separated by commas")
      ->delimiter(',')
      ->default_str("auto,message-ring,mpi");
  add_wire_option(*reduce, r.wire);
  add_device_options(*reduce, r.device);
  reduce->add_option("--seconds", r.seconds, "How long to measure each row")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  reduce->add_option("--json", r.json, "Write the table to this file as well");
  reduce->callback([&chosen, reduce, reduce_options] {
    reduce_options->configuration = reduce->config_to_str(true, false);
    chosen = [reduce_options](const World& world) {
      expect_whole_world(world);
      bench_all_reduce(world, *reduce_options);
      return 0;
    };
  });
}

void add_doctor(CLI::App& app, Command& chosen) {
  app.add_subcommand("doctor", "Versions, devices and links: what can be used here, and why not the rest")
      ->callback([&chosen] {
        chosen = [](const World& world) {
          doctor(world);
          return 0;
        };
      });
}

}  // namespace

Command parse_command_line(int argc, char** argv, bool speaks) {
  CLI::App app(
      "Synchronous data-parallel training. Run it alone, or as many ranks under mpirun or srun.\n"
      "annulus COMMAND --help lists a command's options.",
      "annulus");
  app.set_version_flag("--version", std::string("annulus ") + ANNULUS_VERSION);
  app.set_config("--config", "", "Read the command's options from this file; a TOML file of lines such as lr = 0.05");
  app.config_formatter(std::make_shared<FlatConfig>(app));
  app.allow_config_extras(CLI::config_extras_mode::error);
  app.fallthrough();

  Command chosen;
  add_train(app, chosen);
  add_eval(app, chosen);
  add_import(app, chosen);
  add_bench(app, chosen);
  add_doctor(app, chosen);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    if (speaks) app.exit(help);
    std::exit(0);
  } catch (const CLI::ParseError& error) {
    if (speaks) fmt::print(stderr, "annulus: {}; see annulus --help\n", error.what());
    std::exit(kUsageExitCode);
  }
  if (!chosen) {
    if (speaks) fmt::print("{}", app.help());
    std::exit(kUsageExitCode);
  }
  return chosen;
}

}  // namespace annulus
