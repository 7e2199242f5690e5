#include "src/scaling/predict_scaling.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>

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

// A number and its unit; NaN where it is none.
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
      throw CLI::ValidationError(
          name, fmt::format("{} is no {}; give one such as {}", in_quotes(text), quantity.type, quantity.example));
  };
  command.add_option_function<std::string>(name, set, fmt::format("{}, such as {}", description, quantity.example))
      ->type_name(quantity.type);
}

void add_links(CLI::App& command, PredictScalingOptions& options) {
  auto* fit = command.add_option("--fit", options.fit,
                                 "Take the network's latency and bandwidth from this file of annulus bench all-reduce "
                                 "--json");
  add_quantity(command, "--latency", options.cluster.network.latency_seconds, kTime, "Of a message between nodes");
  add_quantity(command, "--bandwidth", options.cluster.network.bytes_per_second, kRate, "Of a node's link, each way");
  command.add_option("--ranks-per-node", options.cluster.ranks_per_node, "Ranks on each node")
      ->transform(whole_number(1, 1 << 20))
      ->capture_default_str();
  add_quantity(command, "--node-latency", options.cluster.node.latency_seconds, kTime,
               "Of ranks waiting for each other on a node");
  add_quantity(command, "--node-bandwidth", options.cluster.node.bytes_per_second, kRate,
               "With which a rank reads and writes the others' memory on its node, busbw of bench all-reduce there");
  add_quantity(command, "--add-bandwidth", options.cluster.add_bytes_per_second, kRate,
               "With which a rank adds what has arrived, if not as if at once");
  for (const char* given : {"--latency", "--bandwidth"}) fit->excludes(command.get_option(given));
  command.get_option("--latency")->needs(command.get_option("--bandwidth"));
  command.get_option("--bandwidth")->needs(command.get_option("--latency"));
}

void expect_links(const CLI::App& command, const PredictScalingOptions& options) {
  if (options.fit.empty() && command.count("--bandwidth") == 0)
    throw CLI::ValidationError("--fit", "the network is not known: give --fit FILE, or --latency and --bandwidth");
  if (options.cluster.ranks_per_node > 1 &&
      (command.count("--node-latency") == 0 || command.count("--node-bandwidth") == 0))
    throw CLI::ValidationError("--ranks-per-node",
                               "ranks on one node want --node-latency and --node-bandwidth as well");
  for (const double rate : {options.cluster.network.bytes_per_second, options.cluster.node.bytes_per_second,
                            options.cluster.add_bytes_per_second})
    if (rate == 0) throw CLI::ValidationError("--bandwidth", "a link without bandwidth carries nothing");
}

}  // namespace

void add_predict_scaling(CLI::App& app, Command& chosen) {
  auto* command = app.add_subcommand("predict-scaling", "Predict training on more ranks, from a step's profile");
  auto options = std::make_shared<PredictScalingOptions>();
  auto& o = *options;
  auto wire = std::make_shared<std::string>("fp32");
  command->add_option("step", o.step, "What annulus bench step --json has written")->required();
  add_links(*command, o);
  command->add_option("--ranks", o.ranks, "How many, separated by commas")
      ->delimiter(',')
      ->transform(whole_number(1, 1 << 20))
      ->default_str("1,2,4,8,16,32,64,128,256,512,1024,2048,4096");
  command->add_option("--batch", o.batch, "Images a step on each rank; the profile's if not given. Computing is scaled")
      ->transform(whole_number(1));
  command->add_option("--all-reduce", o.all_reduce, "auto, message-ring or doubling, as train has them")
      ->check(CLI::IsMember({"auto", "message-ring", "doubling"}))
      ->capture_default_str();
  add_wire_option(*command, *wire);
  add_bucket_options(*command, o.buckets, nullptr);
  command
      ->add_option(
          "--slow-down", o.slow_down,
          "Computing takes so many times as long while a sum is under way; bench step --all-reduce auto,none shows "
          "what it adds to a step")
      ->transform(number_from(1, 100))
      ->capture_default_str();
  command->add_option("--json", o.json, "Write the table to this file as well");
  add_overwrite_option(*command, o.overwrite);
  command->callback([&chosen, command, options, wire] {
    expect_links(*command, *options);
    options->cluster.wire = parse_wire_type(*wire);
    chosen.run = [options](const World& world, Watchdog&) {
      expect_replaceable(world, {{options->json, FileKind::scaling_prediction}}, {options->step, options->fit},
                         options->overwrite);
      if (world.root()) predict_scaling(*options);
      return 0;
    };
  });
}

}  // namespace annulus
