#include "src/job/open_device.h"

#include <fmt/ranges.h>
#include <algorithm>
#include <map>
#include <vector>

#include "kernels/base/allowed_resources.h"
#include "kernels/cuda/make_cuda_device.h"
#include "src/job/gpu_use.h"
#include "src/job/instruction_sets.h"
#include "src/job/launched_rank.h"
#include "src/job/machine.h"
#include "src/job/memory_share.h"
#include "src/job/near_processors.h"
#include "src/job/threads.h"

namespace annulus {
namespace {

bool every_rank_has_a_gpu(const World& world) {
  const std::vector<std::uint64_t> gpus = world.gather(static_cast<std::uint64_t>(gpus_here()));
  return std::ranges::find(gpus, 0u) == gpus.end();
}

std::string gpu_address(int number) {
  const std::string name = gpu_name(number);
  return name.substr(0, name.find(','));
}

}  // namespace

void choose_gpu(const std::string& device) {
  const auto local_rank = device == "cpu" ? std::nullopt : launched_local_rank();
  if (local_rank && gpus_here() > 0) use_gpu(*local_rank % gpus_here());
}

std::unique_ptr<Device> open_device(const World& world, const DeviceOptions& options) {
  DeviceRequest request{.name = options.device, .threads = choose_threads(world, options.threads).count};
  if (options.device == "auto") request.name = every_rank_has_a_gpu(world) ? "cuda" : "cpu";
  if (options.precision != "auto") request.precision = parse_precision(options.precision);
  request.gpu = gpu_of(world);
  share_memory_of_node(world);
  request.tuning.file = options.tuning;
  request.tuning.deterministic = options.deterministic == "on";
  if (world.root()) request.tuning.report = [](const std::string& line) { fmt::print(stderr, "annulus: {}\n", line); };
  if (options.device != "cpu" && every_rank_has_a_gpu(world)) request.sharing = ranks_on_gpu(world).count;
  if (request.name == "cuda" && gpus_here() > 0) bind_to(processors_near(gpu_address(request.gpu)));
  if (request.name == "cpu") {
    const std::string differences = agree_on_instruction_set(world, options.instruction_set);
    if (!differences.empty()) fmt::print(stderr, "annulus: {}\n", differences);
    if (world.root() && !options.tuning.empty()) fmt::print(stderr, "annulus: --tune has no effect on a CPU\n");
  }
  return make_device(request);
}

std::size_t decoding_threads(const World& world, const Device& device) {
  constexpr int kMost = 32;
  const int allowed = processors_allowed();
  if (device.info().shares_host_memory) return static_cast<std::size_t>(std::clamp(allowed / 4, 1, kMost));
  const int even_share = allowed_processors().count / world.local_size();
  return static_cast<std::size_t>(std::clamp(std::min(allowed, even_share) - 1, 1, kMost));
}

MakeJpegDecoder gpu_decoder(const World& world, const Device& device, std::size_t channels) {
  if (device.info().shares_host_memory) return {};
  return [gpu = gpu_of(world), channels] { return make_jpeg_decoder(gpu, channels); };
}

std::string device_warning(const World& world, const Device& device) {
  const bool on_gpu = !device.info().shares_host_memory;
  const std::string own = on_gpu ? host_name() + " " + gpu_name(gpu_of(world)) : std::string();
  const std::vector<std::string> gpus = world.gather_texts(own);
  const std::vector<std::uint64_t> present = world.gather(static_cast<std::uint64_t>(gpus_here()));
  if (!on_gpu) {
    const auto with = std::ranges::count_if(present, [](std::uint64_t count) { return count > 0; });
    return with == 0 ? gpu_warning() : fmt::format("{} of {} ranks have a GPU, which is not used", with, world.size());
  }
  std::map<std::string, std::vector<std::size_t>> users;
  for (std::size_t rank = 0; rank < gpus.size(); ++rank) users[gpus[rank]].push_back(rank);
  for (const auto& [gpu, ranks] : users)
    if (ranks.size() > 1)
      return fmt::format("ranks {} share a GPU ({}), and each waits while another computes: start one rank per GPU",
                         fmt::join(ranks, ", "), gpu);
  return "";
}

}  // namespace annulus
