#include "src/step/choose_decoder.h"

#include <fmt/format.h>

#include <array>
#include <cmath>

#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "src/job/open_device.h"

namespace annulus {
namespace {

constexpr double kTrialSeconds = 0.3;
constexpr double kMostDifferent = 8;  // of 255, mean of an image; upsampled colours differ by 1 to 3

struct Trial {
  std::vector<std::uint8_t> images;  // of the first batch
  double seconds = 0, samples = 0;   // of the threads, without reading
};

Trial try_decoder(const Samples& data, const InputPlan& plan, const BatchRequest& request) {
  Loader loader(data, plan, request);
  Trial trial;
  const Batch& first = loader.next();
  trial.images.assign(first.images.begin(), first.images.end());
  for (std::size_t i = 0; i < plan.prefetch; ++i) loader.next();  // warm-up: touches the memory once
  const ReadTimes before = loader.times();
  const double end = now_seconds() + kTrialSeconds;
  while (now_seconds() < end || loader.times().samples == before.samples) loader.next();
  const ReadTimes spent = loader.times() - before;
  trial.seconds = spent.sum() - spent.reading;
  trial.samples = static_cast<double>(spent.samples);
  return trial;
}

// The largest mean difference of an image's pixels.
double difference(const Trial& a, const Trial& b, std::size_t image_bytes) {
  double largest = 0;
  for (std::size_t begin = 0; begin < a.images.size(); begin += image_bytes) {
    double sum = 0;
    for (std::size_t i = begin; i < begin + image_bytes; ++i) sum += std::abs(a.images[i] - b.images[i]);
    largest = std::max(largest, sum / static_cast<double>(image_bytes));
  }
  return largest;
}

// Why the GPU decodes no images; empty if it does.
std::string why_not(const MakeJpegDecoder& by_gpu) {
  if (!by_gpu) return "the device is a CPU";
  try {
    by_gpu();
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace

DecoderChoice choose_decoder(const World& world, const Device& device, const Samples& data, const InputPlan& plan,
                             const BatchRequest& trial, const std::string& option, std::optional<bool> earlier) {
  const bool encoded = data.info().encoded();
  if (option == "gpu" && !encoded) fail("--decode gpu: the data has no JPEG images; remove the option");
  if (option == "cpu" || !encoded || (option == "auto" && device.info().shares_host_memory)) return {};
  InputPlan by_gpu = plan;
  by_gpu.make_decoder = gpu_decoder(world, device, plan.channels);
  const DecoderChoice gpu{by_gpu.make_decoder, "JPEG images are decoded by the GPU"};
  const DecoderChoice cpu{{}, "JPEG images are decoded by the CPU"};
  const auto because = [](DecoderChoice choice, const std::string& reason) {
    choice.report += reason;
    return choice;
  };

  const std::string why = why_not(by_gpu.make_decoder);
  if (option == "gpu" && !why.empty()) fail("--decode gpu: {}", why);
  std::array<double, 1> without{why.empty() ? 0.0 : 1.0};
  world.sum(without);
  if (without[0] > 0) return because(cpu, ": " + (why.empty() ? "another rank's GPU cannot" : why));
  if (option == "gpu") return gpu;
  if (earlier) return because(*earlier ? gpu : cpu, " as before");

  const Trial by_libjpeg = try_decoder(data, plan, trial), by_decoder = try_decoder(data, by_gpu, trial);
  const bool differs = difference(by_libjpeg, by_decoder, plan.image_bytes()) > kMostDifferent;
  std::array<double, 5> all{by_libjpeg.seconds, by_libjpeg.samples, by_decoder.seconds, by_decoder.samples,
                            differs ? 1.0 : 0.0};
  world.sum(all);
  if (all[4] > 0) return because(cpu, fmt::format(": the GPU's pixels are wrong on {:.0f} ranks", all[4]));
  const double cpu_ms = 1e3 * all[0] / all[1], gpu_ms = 1e3 * all[2] / all[3];
  return because(gpu_ms < cpu_ms ? gpu : cpu,
                 fmt::format(": preparing an image takes a thread {:.3f} ms with the GPU's decoder, {:.3f} ms without",
                             gpu_ms, cpu_ms));
}

void set_decoder(const World& world, const Device& device, const Samples& data, InputPlan& plan,
                 const BatchRequest& trial, const std::string& option, std::optional<bool> earlier) {
  const DecoderChoice choice = choose_decoder(world, device, data, plan, trial, option, earlier);
  plan.make_decoder = choice.make;
  if (world.root() && !choice.report.empty()) fmt::print("{}\n", choice.report);
}

}  // namespace annulus
