#include "collectives/gpu/places.h"

#include <unistd.h>

#include <array>
#include <cstring>

#include "kernels/base/error.h"
#include "kernels/cuda/runtime/runtime.h"

namespace annulus {
namespace {

// A GPU's location. The texts are padded with zeros.
struct Place {
  std::array<char, 64> host{}, gpu{};
  bool operator==(const Place&) const = default;
};

Place own_place() {
  Place place;
  gethostname(place.host.data(), place.host.size() - 1);
  cuda::check(cudaDeviceGetPCIBusId(place.gpu.data(), static_cast<int>(place.gpu.size()), cuda::current_device()));
  return place;
}

std::vector<Place> all_places(const World& world) {
  Place own;
  world.all_or_none([&] { own = own_place(); });
  const std::vector<std::byte> bytes = world.gather(std::as_bytes(std::span(&own, 1)));
  std::vector<Place> places(static_cast<std::size_t>(world.size()));
  std::memcpy(places.data(), bytes.data(), bytes.size());
  return places;
}

}  // namespace

std::string shared_gpu(const World& world) {
  const std::vector<Place> places = all_places(world);
  for (std::size_t one = 0; one < places.size(); ++one)
    for (std::size_t other = one + 1; other < places.size(); ++other)
      if (places[one] == places[other])
        return fmt::format("ranks {} and {} share GPU {} of host {}", world.rank_in_job(static_cast<int>(one)),
                           world.rank_in_job(static_cast<int>(other)), places[one].gpu.data(), places[one].host.data());
  return "";
}

}  // namespace annulus
