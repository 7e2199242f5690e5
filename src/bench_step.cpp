#include "src/bench_step.h"

#include <fmt/format.h>

#include <algorithm>

#include "collectives/aligned_clock.h"
#include "kernels/clock.h"
#include "kernels/random.h"
#include "models/zoo.h"
#include "src/results.h"
#include "src/trainer.h"

namespace annulus {
namespace {

constexpr int kWarmUpSteps = 5;

Batch random_batch(const BenchStepOptions& options, const World& world) {
  Batch batch;
  batch.images.resize(options.batch * options.image[0] * options.image[1] * options.image[2]);
  batch.labels.resize(options.batch);
  const auto rank = static_cast<std::uint64_t>(world.rank());
  for (std::size_t i = 0; i < batch.images.size(); ++i) batch.images[i] = static_cast<std::uint8_t>(mix(rank, 0, i));
  for (std::size_t i = 0; i < batch.labels.size(); ++i)
    batch.labels[i] = static_cast<std::int32_t>(mix(rank, 1, i) % options.classes);
  batch.step = {0, {0, options.batch * static_cast<std::size_t>(world.size())}, false};
  return batch;
}

}  // namespace

void bench_step(const World& world, const BenchStepOptions& options) {
  const auto device = make_device(options.device.device, options.device.threads);
  const auto& image = options.image;
  const Task task{{image[0], image[1], image[2]},
                  std::vector<float>(image[2], 0.5f),
                  std::vector<float>(image[2], 0.25f),
                  options.classes};
  const auto all_reduce = make_all_reduce(options.all_reduce, world);
  Model model(*device, make_model(options.model, task), Mode::training, options.batch, allocate_in(*all_reduce));
  model.parameters().initialize(1);
  Optimizer optimizer(*device, model.parameters(), {.rate = 1e-4f, .momentum = 0.9f});
  Ledger ledger(clock_offset_to_root(world));
  Trainer trainer(model, *all_reduce, optimizer, ledger, options.bucket_bytes);
  const Batch batch = random_batch(options, world);

  const auto time_step = [&] {
    const double begun = now_seconds();
    trainer.step(batch, 0, begun);
    return now_seconds() - begun;
  };
  double slowest = 0;
  for (int i = 0; i < kWarmUpSteps; ++i) slowest = time_step();
  world.maximum(std::span(&slowest, 1));  // every rank must make as many steps
  ledger.close(world);
  std::vector<double> seconds(std::max<std::size_t>(5, static_cast<std::size_t>(options.seconds / slowest)));
  for (double& s : seconds) s = time_step();
  const StepTimes times = ledger.close(world);
  world.maximum(seconds);
  if (!world.root()) return;

  std::ranges::sort(seconds);
  const double median = seconds[seconds.size() / 2];
  const auto images = static_cast<double>(batch.step.global_batch());
  fmt::print("{}, {} rank{} x {} images of {}x{}x{}, {}, all-reduce {}\n", options.model, world.size(),
             world.size() == 1 ? "" : "s", options.batch, image[0], image[1], image[2], device->description(),
             all_reduce->description());
  fmt::print("{:>8} {:>12} {:>12} {:>12}\n", "steps", "median ms", "minimum ms", "images/s");
  fmt::print("{:>8} {:>12.3f} {:>12.3f} {:>12.0f}\n", seconds.size(), 1e3 * median, 1e3 * seconds.front(),
             images / median);
  fmt::print("{}", ledger_table(times));
  if (options.json.empty()) return;
  nlohmann::json row{{"model", options.model},      {"batch", options.batch},
                     {"ranks", world.size()},       {"algorithm", options.all_reduce},
                     {"steps", seconds.size()},     {"median_seconds", median},
                     {"min_seconds", seconds[0]},   {"images_per_second", images / median},
                     {"ledger", ledger_json(times)}};
  write_json(options.json, {{"version", ANNULUS_VERSION}, {"device", device->description()}, {"rows", {row}}});
}

}  // namespace annulus
