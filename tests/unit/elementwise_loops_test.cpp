// A device's kernels over flat arrays.

#include <algorithm>
#include <catch2/catch.hpp>

#include "kernels/base/host_memory.h"
#include "tests/unit/random_values.h"
#include "tests/unit/test_device.h"

namespace annulus {
namespace {

struct Array {
  Array(Device& on, std::size_t size, std::uint64_t seed)
      : device(on), before(test::random_values(size, seed)), memory(on.allocate(size * sizeof(float))) {
    on.upload(std::as_bytes(std::span(before)), memory.view());
  }
  std::vector<float> now() const { return test::floats_of(device, memory.view()); }

  Device& device;
  const std::vector<float> before;
  const Buffer memory;
};

}  // namespace

TEST_CASE("flat arrays are copied, scaled and added") {
  const auto device = test::make_device(2);
  const std::size_t size = GENERATE(16, 48, 100'000);
  CAPTURE(size);
  const Array a(*device, size, 1), b(*device, size, 2), to(*device, size, 3);
  device->scale(a.memory.view(), 0.3f, to.memory.view());
  device->add_scaled(b.memory.view(), -0.7f, to.memory.view());
  const std::vector<float> found = to.now();
  for (std::size_t i = 0; i < size; ++i)
    REQUIRE(found[i] == Approx(double{0.3f} * a.before[i] - double{0.7f} * b.before[i]).margin(1e-6));
  device->add_scaled(a.memory.view(), -1, b.memory.view());  // an exact difference, rounded once
  const std::vector<float> difference = b.now();
  for (std::size_t i = 0; i < size; ++i) REQUIRE(difference[i] == b.before[i] - a.before[i]);
  device->copy(to.memory.view(), a.memory.view());
  CHECK(a.now() == found);
  CHECK(to.now() == found);
}

TEST_CASE("flat arrays are copied from and to pinned memory of the host") {
  const auto device = test::make_device(2);
  const Array a(*device, 1000, 1);
  const Buffer pinned = device->allocate_pinned(a.memory.view().bytes);
  device->copy(a.memory.view(), pinned.view());
  device->finish();
  const std::span<float> host = floats(pinned.view());
  CHECK(std::ranges::equal(host, a.before));
  std::ranges::fill(host, 3.0f);
  device->copy(pinned.view(), a.memory.view());
  CHECK(a.now() == std::vector(1000, 3.0f));
}

}  // namespace annulus
