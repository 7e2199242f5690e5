#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "collectives/gradient_buckets.h"
#include "collectives/world/world.h"
#include "src/cli/cli.h"
#include "src/data/input_plan.h"
#include "src/io/output_file.h"
#include "src/job/open_device.h"
#include "src/step/timeline.h"

namespace annulus {

// Options that several commands share.

constexpr std::uint64_t kMostThreads = 4096, kMostPixels = 1 << 14;  // per image side
constexpr std::uint64_t kMostClasses = 1 << 20, kMostLength = 1 << 20;
extern const CLI::Validator kSeed;

constexpr const char* kAllReduceHelp =
    "All-reduce algorithm: auto, shm, hierarchical, ring, message-ring, doubling, mpi (MPI_Allreduce), nccl (GPUs)";

std::string model_help();

// Adds options that append another size to the name of a GPT, see zoo_entry(). --context also sets `length` if that is
// 0. REQUIRES: the options for `model` and `length` are added before, since options are read in this order.
void add_size_options(CLI::App& command, std::string& model, std::size_t& length);

void add_device_options(CLI::App& command, DeviceOptions& options);

CLI::Option* add_threads_option(CLI::App& command, int& threads);

void add_data_option(CLI::App& command, DataOptions& options);

// Adds options that prepare the data; for evaluation, without augmentation and order.
void add_input_options(CLI::App& command, DataOptions& options, Purpose purpose);
CLI::Option* add_views_option(CLI::App& command, DataOptions& options);

// Adds the option for the pixels that an ONNX file's network reads.
// `image`, `most`: see parse_image().
CLI::Option* add_image_option(CLI::App& command, std::vector<std::size_t>& image, std::uint64_t most,
                              const std::string& fallback);

void add_pixels_option(CLI::App& command, std::string& pixels);

// Adds options for the checkpoint and the weights to use, for commands that only read a checkpoint.
void add_checkpoint_options(CLI::App& command, std::filesystem::path& checkpoint, std::string& weights);

// Adds a flag for commands that check the data against a checkpoint.
CLI::Option* add_data_changed_flag(CLI::App& command, bool& changed, const std::string& help);

CLI::Option* add_wire_option(CLI::App& command, std::string& wire);
CLI::Option* add_recompute_option(CLI::App& command, std::string& recompute);
void add_bucket_options(CLI::App& command, BucketOptions& buckets);
void add_timeline_options(CLI::App& command, TimelineOptions& options);

// Adds an option for commands that report progress to the Watchdog.
void add_stall_option(CLI::App& command, Command& chosen);

// Adds --json, the file of a command's report; "-" is standard output. `help`: "JSON file to write the table to".
CLI::Option* add_json_option(CLI::App& command, Command& chosen, std::filesystem::path& file, const std::string& help);

// Add --overwrite, and apply src/io/output_file.h's rule on rank 0.
void add_overwrite_option(CLI::App& command, bool& overwrite);
void expect_replaceable(const World& world, const std::vector<Output>& outputs,
                        const std::vector<std::filesystem::path>& inputs, bool overwrite);

}  // namespace annulus
