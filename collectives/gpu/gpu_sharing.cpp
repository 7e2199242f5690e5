#include "collectives/gpu/gpu_sharing.h"

#include <unistd.h>

#include <array>
#include <cstring>

#include "kernels/base/error.h"
#include "kernels/cuda/runtime/runtime.h"

namespace annulus {
namespace {

// A GPU's location. The texts are padded with zeros.
struct GpuLocation {
  std::array<char, 64> host{}, gpu{};
  bool operator==(const GpuLocation&) const = default;
};

GpuLocation own_location() {
  GpuLocation own;
  gethostname(own.host.data(), own.host.size() - 1);
  cuda::check(cudaDeviceGetPCIBusId(own.gpu.data(), static_cast<int>(own.gpu.size()), cuda::current_device()));
  return own;
}

std::vector<GpuLocation> all_locations(const World& world) {
  GpuLocation own;
  world.all_or_none([&] { own = own_location(); });
  const std::vector<std::byte> bytes = world.gather(std::as_bytes(std::span(&own, 1)));
  std::vector<GpuLocation> locations(static_cast<std::size_t>(world.size()));
  std::memcpy(locations.data(), bytes.data(), bytes.size());
  return locations;
}

}  // namespace

std::string shared_gpu(const World& world) {
  const std::vector<GpuLocation> all = all_locations(world);
  for (std::size_t one = 0; one < all.size(); ++one)
    for (std::size_t other = one + 1; other < all.size(); ++other)
      if (all[one] == all[other])
        return fmt::format("ranks {} and {} share GPU {} of host {}", world.rank_in_job(static_cast<int>(one)),
                           world.rank_in_job(static_cast<int>(other)), all[one].gpu.data(), all[one].host.data());
  return "";
}

}  // namespace annulus
