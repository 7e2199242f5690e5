#include "src/cli/common_options.h"

#include <fmt/ranges.h>

#include <cstdint>
#include <limits>

#include "kernels/base/error.h"
#include "src/cli/choices.h"
#include "src/cli/numbers.h"
#include "src/io/standard_output.h"
#include "src/onnx/network_file.h"

namespace annulus {

const CLI::Validator kSeed = whole_number(0, std::numeric_limits<std::int64_t>::max());

std::string model_help() {
  return fmt::format("Model: {} (see annulus models --help), or an ONNX file exported from PyTorch",
                     fmt::join(model_names(), ", "));
}

void add_size_options(CLI::App& command, std::string& model, std::size_t& length) {
  const auto add = [&](const std::string& name, const std::string& help) {
    const auto resize = [&model, &length, name](std::uint64_t value) {
      if (is_network_file(model)) throw CLI::ValidationError(name, "the network of an ONNX file has a fixed size");
      model += fmt::format(" {} {}", name, value);
      if (name == "--context" && length == 0) length = value;
    };
    command.add_option_function<std::uint64_t>(name, resize, help)->transform(whole_number(1))->group("Size of a GPT");
  };
  add("--layers", "Number of blocks; the default of all sizes: the model's");
  add("--width", "Elements of a token's vector");
  add("--heads", "Attention heads of each block; a divisor of the width");
  add("--context", "Number of positions: no window is longer, and --length is as long by default");
}

void add_device_options(CLI::App& command, DeviceOptions& options) {
  const auto add = [&](const std::string& name, auto& value, const std::string& help) {
    return command.add_option(name, value, help)->group("Device");
  };
  add("--device", options.device, "Device: cpu, cuda, or auto (a GPU if every rank has one)")
      ->check(one_of({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  add("--precision", options.precision,
      "Precision of compute: fp32, tf32, bf16, fp16, or auto (bf16 on a GPU, fp32 on a CPU)")
      ->check(one_of({"auto", "fp32", "tf32", "bf16", "fp16"}))
      ->capture_default_str();
  add_threads_option(command, options.threads)->group("Device");
  add("--instruction-set", options.instruction_set,
      "Instruction set of CPUs: amx, avx512, avx2, avx, sse4.1, or auto (the widest that all ranks have)")
      ->check(one_of({"auto", "amx", "avx512", "avx2", "avx", "sse4.1"}))
      ->capture_default_str();
  add("--tune", options.tuning,
      "File for the fastest plans of convolutions, products and attention, measured once, for at most 30 s (GPUs)")
      ->type_name("FILE");
  add("--deterministic", options.deterministic,
      "off: --tune may choose plans whose sums differ from run to run (GPUs, fp16 and bf16)")
      ->check(one_of({"on", "off"}))
      ->capture_default_str();
}

CLI::Option* add_threads_option(CLI::App& command, int& threads) {
  return command
      .add_option("--threads", threads,
                  "Compute threads per rank; 0: OMP_NUM_THREADS, SLURM_CPUS_PER_TASK, or a share of the processors "
                  "that ranks have in common")
      ->transform(whole_number(0, kMostThreads))
      ->capture_default_str();
}

void add_data_option(CLI::App& command, DataOptions& options) {
  command.add_option("--data", options.files, "Data files from annulus import, or patterns such as 'part-*.h5'")
      ->type_name("FILE")
      ->required();
}

CLI::Option* add_image_option(CLI::App& command, std::vector<std::size_t>& image, std::uint64_t most,
                              const std::string& fallback) {
  const auto parse = [&image, most](const std::string& text) { image = parse_image(text, most); };
  return command
      .add_option_function<std::string>(
          "--image", parse,
          "Image size: 224, 224x160 or 224x160x3 (height, width, channels); channels default to the model's")
      ->type_name("SIZE")
      ->default_str(fallback);
}

void add_pixels_option(CLI::App& command, std::string& pixels) {
  command
      .add_option("--pixels", pixels,
                  "Pixels that the network of an ONNX file reads: 0..1 or 0..255 if it normalizes images itself, "
                  "normalized with the mean and std of the data, or what its first operations suggest (auto)")
      ->check(one_of({"auto", "normalized", "0..1", "0..255"}))
      ->capture_default_str();
}

void add_checkpoint_options(CLI::App& command, std::filesystem::path& checkpoint, std::string& weights) {
  command
      .add_option("--checkpoint", checkpoint,
                  "Checkpoint file, such as RUN/best.h5, or a run's folder (its newest checkpoint)")
      ->type_name("FILE")
      ->required();
  command
      .add_option("--weights", weights,
                  "Weights: ema (their moving average), raw (as trained), or auto (ema if stored)")
      ->check(one_of({"auto", "ema", "raw"}))
      ->capture_default_str();
}

CLI::Option* add_data_changed_flag(CLI::App& command, bool& changed, const std::string& help) {
  return command.add_flag("--data-changed", changed, help)->configurable(false);
}

CLI::Option* add_wire_option(CLI::App& command, std::string& wire) {
  return command
      .add_option(
          "--wire", wire,
          "Data type of messages between nodes: fp32, bf16 or fp16; sums, and the weights of --strategy sharded, "
          "are always in fp32")
      ->check(one_of({"fp32", "bf16", "fp16"}))
      ->capture_default_str();
}

CLI::Option* add_recompute_option(CLI::App& command, std::string& recompute) {
  return command
      .add_option(
          "--recompute", recompute,
          "Activations to recompute in backward instead of storing them: none, or blocks (those within residual "
          "blocks: less memory, longer steps)")
      ->check(one_of({"none", "blocks"}))
      ->capture_default_str();
}

void add_bucket_options(CLI::App& command, BucketOptions& buckets) {
  constexpr std::uint64_t smallest = 4096, largest = std::uint64_t{1} << 40;
  const auto parse = [&buckets](std::string text) {
    buckets.bytes = 0;
    if (text == "auto") return;
    if (!byte_size(smallest, largest)(text).empty())
      throw CLI::ValidationError("--bucket", unexpected("auto or a size of at least 4KiB, such as 1MiB", text));
    buckets.bytes = std::stoull(text);
  };
  command
      .add_option_function<std::string>(
          "--bucket", parse,
          "Bucket size, such as 1MiB; auto: 1/8 of all gradients, clamped to 64KiB..4MiB; 64MiB on a single rank")
      ->type_name("SIZE")
      ->group("All-reduce")
      ->default_str("auto");
  command
      .add_option(
          "--defer", buckets.deferred,
          "Fraction of the gradients, from the last layers, whose all-reduces may overlap the next forward pass")
      ->group("All-reduce")
      ->transform(number_from(0, 1))
      ->capture_default_str();
}

void add_timeline_options(CLI::App& command, TimelineOptions& options) {
  command.add_option("--timeline", options.file, "Trace file of all ranks, for https://ui.perfetto.dev")
      ->type_name("FILE")
      ->configurable(false)
      ->group("Timeline");
  command
      .add_option("--timeline-steps", options.steps,
                  options.first > 0 ? fmt::format("Traced steps, after the first {}", options.first) : "Traced steps")
      ->transform(whole_number(1))
      ->capture_default_str()
      ->configurable(false)
      ->group("Timeline");
}

void add_stall_option(CLI::App& command, Command& chosen) {
  command
      .add_option("--stall-timeout", chosen.stall_seconds,
                  "Seconds without progress until every rank reports its position and the job is aborted; 0: never")
      ->transform(number_from(0))
      ->capture_default_str();
}

CLI::Option* add_json_option(CLI::App& command, Command& chosen, std::filesystem::path& file, const std::string& help) {
  const auto parse = [&chosen, &file](const std::string& name) {
    file = name;
    chosen.reports_on_stdout = name == kStandardOutput;
  };
  return command
      .add_option_function<std::string>("--json", parse,
                                        help + "; -: standard output, and all other output goes to standard error")
      ->type_name("FILE");
}

void add_overwrite_option(CLI::App& command, bool& overwrite) {
  command.add_flag("--overwrite", overwrite, "Replace existing files of any kind")->configurable(false);
}

void expect_replaceable(const World& world, const std::vector<Output>& outputs,
                        const std::vector<std::filesystem::path>& inputs, bool overwrite) {
  if (!world.root()) return;
  for (const Output& output : outputs) expect_replaceable(output, inputs, overwrite);
}

}  // namespace annulus
