#include "src/scaling/predict_scaling.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>

#include "src/cli/choices.h"
#include "src/cli/commands.h"
#include "src/cli/common_options.h"
#include "src/cli/numbers.h"

namespace annulus {
namespace {

struct Quantity {
  const char *type, *example;
  std::map<std::string, double> units;
};

const Quantity kTime{"TIME", "20us", {{"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3}, {"s", 1}}};
const Quantity kRate{"RATE", "10Gbit/s", {{"Mbit/s", 1e6 / 8}, {"Gbit/s", 1e9 / 8}, {"MB/s", 1e6}, {"GB/s", 1e9}}};

// Parses a number with a unit. Returns NaN if that fails.
double parse(const std::string& text, const Quantity& quantity) {
  try {
    std::size_t end = 0;
    const double number = std::stod(text, &end);
    return number * quantity.units.at(text.substr(std::min(text.size(), text.find_first_not_of(' ', end))));
  } catch (const std::exception&) {
    return std::nan("");
  }
}

void add_quantity(CLI::App& command, const std::string& name, double& value, const Quantity& quantity,
                  const std::string& description) {
  const auto set = [name, &value, &quantity](const std::string& text) {
    value = parse(text, quantity);
    if (!(value >= 0) || !std::isfinite(value))
      throw CLI::ValidationError(name,
                                 unexpected(fmt::format("a {} such as {}", quantity.type, quantity.example), text));
  };
  command.add_option_function<std::string>(name, set, fmt::format("{}, such as {}", description, quantity.example))
      ->type_name(quantity.type);
}

void add_links(CLI::App& command, PredictScalingOptions& options) {
  auto* fit = command.add_option(
      "--fit", options.fit,
      "Output file of annulus bench all-reduce --json between nodes, to fit --latency and --bandwidth to");
  fit->type_name("FILE");
  add_quantity(command, "--latency", options.cluster.network.latency_seconds, kTime,
               "Latency of a message between nodes");
  add_quantity(command, "--bandwidth", options.cluster.network.bytes_per_second, kRate,
               "Bandwidth of a node's link, each way");
  command.add_option("--ranks-per-node", options.cluster.ranks_per_node, "Ranks on each node")
      ->transform(whole_number(1, 1 << 20))
      ->capture_default_str();
  add_quantity(command, "--node-latency", options.cluster.node.latency_seconds, kTime,
               "Latency of synchronization between ranks of a node");
  add_quantity(command, "--node-bandwidth", options.cluster.node.bytes_per_second, kRate,
               "Bandwidth of a rank to the others' memory on its node (busbw of annulus bench all-reduce)");
  add_quantity(command, "--add-bandwidth", options.cluster.add_bytes_per_second, kRate,
               "Speed at which a rank adds received data, infinite if not given");
  for (const char* given : {"--latency", "--bandwidth"}) fit->excludes(command.get_option(given));
  command.get_option("--latency")->needs(command.get_option("--bandwidth"));
  command.get_option("--bandwidth")->needs(command.get_option("--latency"));
}

void expect_links(const CLI::App& command, const PredictScalingOptions& options) {
  if (options.fit.empty() && command.count("--bandwidth") == 0)
    throw CLI::ValidationError("--fit", "the network is unknown: give --fit FILE, or --latency and --bandwidth");
  if (options.cluster.ranks_per_node > 1 &&
      (command.count("--node-latency") == 0 || command.count("--node-bandwidth") == 0))
    throw CLI::ValidationError("--ranks-per-node",
                               "several ranks per node also require --node-latency and --node-bandwidth");
  for (const double rate : {options.cluster.network.bytes_per_second, options.cluster.node.bytes_per_second,
                            options.cluster.add_bytes_per_second})
    if (rate == 0) throw CLI::ValidationError("--bandwidth", "must be above 0");
}

void add_interference(CLI::App& command, Interference& interference) {
  constexpr const char* kGroup = "Interference of ranks (the study measures it)";
  command
      .add_option(
          "--slow-down", interference.slow_down,
          "Factor by which all-reduces slow down concurrent computing (annulus bench step --all-reduce auto,none)")
      ->transform(number_from(1, 100))
      ->capture_default_str()
      ->group(kGroup);
  command
      .add_option("--contention", interference.contention,
                  "Factor by which a rank's own work takes longer beside other ranks, which share its memory")
      ->transform(number_from(1, 100))
      ->capture_default_str()
      ->group(kGroup);
  command
      .add_option("--waiting", interference.waiting,
                  "Mean random delay of a rank in a step, as a share of its computing; all ranks wait for the slowest")
      ->transform(number_from(0, 100))
      ->capture_default_str()
      ->group(kGroup);
}

}  // namespace

void add_predict_scaling(CLI::App& app, Command& chosen) {
  auto* command = app.add_subcommand("predict-scaling", "Predict training on more ranks from a step's profile");
  auto options = std::make_shared<PredictScalingOptions>();
  auto& o = *options;
  auto wire = std::make_shared<std::string>("fp32");
  command->add_option("STEP", o.step, "Output file of annulus bench step --json")->required();
  add_links(*command, o);
  command->add_option("--ranks", o.ranks, "Numbers of ranks")
      ->delimiter(',')
      ->transform(whole_number(1, 1 << 20))
      ->default_str("1,2,4,... as far as the link is known, at most 4096");
  command
      ->add_option("--batch", o.batch, "Batch size per rank, with which compute time is scaled; default: the profile's")
      ->transform(whole_number(1));
  command->add_option("--all-reduce", o.all_reduce, "All-reduce algorithm, as in train: auto, message-ring or doubling")
      ->check(one_of({"auto", "message-ring", "doubling"}))
      ->capture_default_str()
      ->group("All-reduce");
  add_wire_option(*command, *wire)->group("All-reduce");
  add_bucket_options(*command, o.buckets);
  add_interference(*command, o.interference);
  command
      ->add_option("--noise", o.noise,
                   "results.json of a run, whose gradient-noise scale predicts the time to the same loss")
      ->type_name("FILE");
  add_json_option(*command, chosen, o.json, "JSON file to write the table to");
  add_overwrite_option(*command, o.overwrite);
  command->callback([&chosen, command, options, wire] {
    expect_links(*command, *options);
    options->cluster.wire = parse_wire_type(*wire);
    chosen.run_without_mpi = [options] {
      expect_replaceable({options->json, FileKind::scaling_prediction}, {options->step, options->fit, options->noise},
                         options->overwrite);
      predict_scaling(*options);
      return 0;
    };
  });
}

}  // namespace annulus
