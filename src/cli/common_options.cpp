#include "src/cli/common_options.h"

#include <fmt/format.h>

#include <cstdint>
#include <limits>

#include "kernels/base/error.h"
#include "models/zoo.h"
#include "src/cli/numbers.h"
#include "src/job/scheduler.h"

namespace annulus {

const CLI::Validator kSeed = whole_number(0, std::numeric_limits<std::int64_t>::max());

std::string model_help() {
  std::string text = "One of:";
  for (const ZooEntry& entry : zoo()) text += fmt::format("\n{:<14}{}", entry.name, entry.description);
  return text;
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
  command
      .add_option(
          "--threads", options.threads,
          "Threads of each rank; 0: OMP_NUM_THREADS, SLURM_CPUS_PER_TASK, or as many processors as it is bound to")
      ->transform(whole_number(0, kMostThreads))
      ->capture_default_str();
}

namespace {

template <class T>
CLI::Option* add_data_option(CLI::App& command, const std::string& name, T& value, const std::string& help) {
  return command.add_option(name, value, help)->capture_default_str()->group("Data");
}

void add_training_data_options(CLI::App& command, DataOptions& options) {
  add_data_option(command, "--augment", options.augment,
                  "What is done to training images:\n"
                  "none            as in evaluation: the middle\n"
                  "flip            left to right, or not\n"
                  "crop-flip       and moved: by up to 4 pixels, or within larger images\n"
                  "imagenet        a random crop of 8 to 100 %, resized, and flipped or not\n"
                  "imagenet-jitter and brightness, contrast and saturation varied\n"
                  "auto            imagenet for encoded images, none for others")
      ->check(CLI::IsMember({"auto", "none", "flip", "crop-flip", "imagenet", "imagenet-jitter"}));
  add_data_option(command, "--shuffle", options.shuffle,
                  "global: any order; block: an order that reads files nearly from begin to end")
      ->check(CLI::IsMember({"global", "block"}));
  add_data_option(command, "--shuffle-block", options.shuffle_block, "Images that block reads in one go")
      ->transform(whole_number(1, 1 << 30));
  add_data_option(command, "--shuffle-window", options.shuffle_window, "Blocks that it mixes with each other")
      ->transform(whole_number(1, 1 << 20));
}

}  // namespace

void add_data_options(CLI::App& command, DataOptions& options, Purpose purpose) {
  command.add_option("--data", options.files, "Data files, made by annulus import, or patterns such as 'part-*.h5'")
      ->required();
  add_data_option(command, "--image", options.image,
                  "Height and width that the network gets; 0: as stored, and 224 of JPEG and PNG images")
      ->transform(whole_number(0, kMostPixels));
  if (purpose == Purpose::training) add_training_data_options(command, options);
  add_data_option(
      command, "--workers", options.workers,
      "Threads of each rank that read and decode; 0: one where images are ready, else all processors but one "
      "beside a GPU, and a quarter where they compute")
      ->transform(whole_number(0, 256));
  add_data_option(command, "--prefetch", options.prefetch, "Batches that they prepare ahead")
      ->transform(whole_number(1, 1024));
  add_data_option(command, "--on-bad-sample", options.on_bad_sample,
                  "What a damaged image or a wrong label does: fail ends the run, skip goes on without it")
      ->check(CLI::IsMember({"fail", "skip"}));
}

void add_checkpoint_options(CLI::App& command, std::filesystem::path& checkpoint, std::string& weights) {
  command
      .add_option("--checkpoint", checkpoint,
                  "A checkpoint's file, such as RUN/best.h5, or the folder of a run, of which the newest is taken")
      ->required();
  command
      .add_option(
          "--weights", weights,
          "ema, the moving average that the run kept, raw, those that it trained, or auto, the average if it is "
          "there")
      ->check(CLI::IsMember({"auto", "ema", "raw"}))
      ->capture_default_str();
}

void add_data_changed_flag(CLI::App& command, bool& changed, const std::string& help) {
  command.add_flag("--data-changed", changed, help)->configurable(false);
}

void add_wire_option(CLI::App& command, std::string& wire) {
  command.add_option("--wire", wire, "What messages between nodes are made of; sums are made in fp32 in any case")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}))
      ->capture_default_str();
}

void add_bucket_options(CLI::App& command, BucketOptions& buckets, bool* tune) {
  constexpr std::uint64_t smallest = 4096, largest = std::uint64_t{1} << 40;
  const auto parse = [&buckets, tune](std::string text) {
    buckets.bytes = 0;
    if (tune != nullptr) *tune = text == "auto";
    if (text == "usual" || (tune != nullptr && *tune)) return;
    if (!byte_size(smallest, largest)(text).empty())
      throw CLI::ValidationError("--bucket",
                                 fmt::format("give a size of at least 4KiB, such as 1MiB, {}, not {}",
                                             tune != nullptr ? "usual or auto" : "or usual", in_quotes(text)));
    buckets.bytes = std::stoull(text);
  };
  command
      .add_option_function<std::string>(
          "--bucket", parse,
          fmt::format("Gradients that are sent together, for example 256KiB or 4MiB; usual: an eighth of all, but "
                      "64KiB to 4MiB{}",
                      tune != nullptr ? "; auto: what trials say, and --defer too" : ""))
      ->type_name("SIZE")
      ->default_str("usual");
  command
      .add_option("--defer", buckets.deferred,
                  "Share of the gradients, those of the uppermost layers, whose sums may go on during the next step's "
                  "forward pass")
      ->transform(number_from(0, 1))
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
                  options.first > 0 ? fmt::format("So many steps of it, after the first {}", options.first)
                                    : "So many of the measured steps of it")
      ->transform(whole_number(1))
      ->capture_default_str()
      ->configurable(false)
      ->group("Timeline");
}

void add_stall_option(CLI::App& command, Command& chosen) {
  command
      .add_option("--stall-timeout", chosen.stall_seconds,
                  "Abort the job and report where each rank stands if nothing moves for this many seconds; 0: never")
      ->transform(number_from(0))
      ->capture_default_str();
}

void add_overwrite_option(CLI::App& command, bool& overwrite) {
  command.add_flag("--overwrite", overwrite, "Replace files that are there already, whatever they are")
      ->configurable(false);
}

void expect_replaceable(const World& world, const std::vector<Output>& outputs,
                        const std::vector<std::filesystem::path>& inputs, bool overwrite) {
  if (!world.root()) return;
  for (const Output& output : outputs) expect_replaceable(output, inputs, overwrite);
}

void expect_whole_world(const World& world) {
  if (const auto complaint = scheduler_complaint(world.size())) fail("{}", *complaint);
}

}  // namespace annulus
