#include "src/train/faster_plans.h"

#include <fmt/format.h>

#include <array>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "kernels/base/clock.h"
#include "models/network/model.h"
#include "src/io/atomic_file.h"
#include "src/io/json.h"

namespace annulus {
namespace {

struct PassSeconds {
  double plain = 0, tuned = 0;
};

// The batch is zeros. Releases the memory again.
double pass_seconds(const World& world, Device& device, const Graph& graph, std::size_t batch) {
  constexpr int kWarmUp = 3, kPasses = 10;
  Model model(device, graph, Mode::training, batch);
  model.parameters().initialize(1);
  model.sum_over_ranks([](DeviceView) {});
  Network& network = model.network(Mode::training, batch);
  const auto run = [&](int passes) {
    for (int pass = 0; pass < passes; ++pass) {
      network.forward();
      network.backward(1 / static_cast<float>(batch));
    }
    device.finish();
  };
  run(kWarmUp);
  const double begun = now_seconds();
  run(kPasses);
  double seconds = (now_seconds() - begun) / kPasses;
  world.maximum({&seconds, 1});
  return seconds;
}

nlohmann::json read(const std::filesystem::path& file) {
  std::ifstream stream(file);
  nlohmann::json json = try_parse_json(stream);
  return json.is_object() ? json : nlohmann::json::object();
}

// Rank 0's, as kept in the file; 0 if it has none. Collective.
PassSeconds known(const World& world, const std::filesystem::path& file, const std::string& name) {
  std::array<double, 2> seconds{};
  if (world.root()) {
    const nlohmann::json json = read(file);
    const auto passes = json.value("passes", nlohmann::json::object());
    if (passes.is_object() && passes.contains(name) && passes[name].is_object())
      seconds = {member_or(passes[name], "plain_seconds", 0.0), member_or(passes[name], "tuned_seconds", 0.0)};
  }
  world.broadcast(std::as_writable_bytes(std::span(seconds)));
  return {seconds[0], seconds[1]};
}

void keep(const std::filesystem::path& file, const std::string& name, const PassSeconds& seconds) {
  nlohmann::json json = read(file);
  if (!json.contains("format")) return;  // nothing was measured: the network has no convolutions
  json["passes"][name] = {{"plain_seconds", seconds.plain}, {"tuned_seconds", seconds.tuned}};
  const std::string text = json.dump(1) + '\n';
  write_atomically(file, std::as_bytes(std::span(text)));
}

}  // namespace

std::unique_ptr<Device> keep_faster_plans(const World& world, const DeviceOptions& options,
                                          std::unique_ptr<Device> tuned, const Graph& graph, const std::string& network,
                                          std::size_t batch) {
  if (options.tuning.empty() || tuned->info().shares_host_memory) return tuned;
  DeviceOptions without = options;
  without.tuning.clear();
  auto plain = open_device(world, without);
  const std::string name = fmt::format("{} on {} ranks, {}, {}, deterministic {}", network, world.size(),
                                       graph.samples_text(batch), plain->info().description, options.deterministic);
  PassSeconds seconds = known(world, options.tuning, name);
  if (seconds.plain == 0) {
    seconds = {pass_seconds(world, *plain, graph, batch), pass_seconds(world, *tuned, graph, batch)};
    world.barrier();  // every rank has written its measurements
    if (world.root()) keep(options.tuning, name, seconds);
  }
  const bool faster = seconds.tuned <= seconds.plain;
  if (world.root())
    fmt::print(stderr, "annulus: forward and backward take {:.3f} ms, with tuned plans {:.3f} ms: {} are used\n",
               1e3 * seconds.plain, 1e3 * seconds.tuned, faster ? "these" : "the former");
  return faster ? std::move(tuned) : std::move(plain);
}

}  // namespace annulus
