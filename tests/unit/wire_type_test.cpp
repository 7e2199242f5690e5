#include "collectives/wire_type.h"

#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <limits>
#include <thread>

#include "collectives/ring/compressed_link.h"
#include "collectives/ring/ring.h"
#include "kernels/base/error.h"
#include "kernels/base/random.h"
#include "tests/unit/loopback_link.h"

namespace annulus {
namespace {

float travelled(WireType wire, float value) {
  round_to(wire, {&value, 1});
  return value;
}

std::vector<float> share(std::size_t count, std::size_t rank) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i)
    values[i] = static_cast<float>(mix(rank, i) >> 40) * 0x1p-24f - 0.5f;  // -0.5 to 0.5
  return values;
}

}  // namespace

TEST_CASE("16-bit values are rounded to nearest, ties to even") {
  CHECK(travelled(WireType::bf16, 1.0f) == 1.0f);
  CHECK(travelled(WireType::bf16, 1 + 0x1p-8f) == 1.0f);  // a tie
  CHECK(travelled(WireType::bf16, 1 + 0x1p-8f + 0x1p-20f) == 1 + 0x1p-7f);
  CHECK(travelled(WireType::bf16, 1 + 3 * 0x1p-8f) == 1 + 0x1p-6f);  // a tie
  CHECK(travelled(WireType::bf16, -3e38f) == Approx(-3e38f).epsilon(0x1p-8));
  CHECK(travelled(WireType::fp16, 1 + 0x1p-11f) == 1.0f);             // a tie
  CHECK(travelled(WireType::fp16, 1 + 3 * 0x1p-11f) == 1 + 0x1p-9f);  // a tie
  CHECK(travelled(WireType::fp16, 65504) == 65504);
  CHECK(std::isinf(travelled(WireType::fp16, 1e6f)));
  for (const WireType wire : {WireType::bf16, WireType::fp16}) {
    CHECK(std::isnan(travelled(wire, std::numeric_limits<float>::quiet_NaN())));
    CHECK(std::isnan(travelled(wire, std::bit_cast<float>(0x7f800001u))));  // whose upper half is that of infinity
    CHECK(travelled(wire, -std::numeric_limits<float>::infinity()) == -std::numeric_limits<float>::infinity());
    CHECK(std::signbit(travelled(wire, -0.0f)));
    const float once = travelled(wire, 0.1f);
    CHECK(travelled(wire, once) == once);
  }
}

TEST_CASE("wire formats are parsed by name") {
  for (const WireType wire : {WireType::fp32, WireType::bf16, WireType::fp16})
    CHECK(parse_wire_type(to_string(wire)) == wire);
  CHECK_THROWS_WITH(parse_wire_type("fp8"), Catch::Contains("fp8") && Catch::Contains("bf16"));
}

TEST_CASE("the ring over 16-bit messages is bit-identical on all ranks and close to the exact sum") {
  const WireType wire = GENERATE(WireType::bf16, WireType::fp16);
  const std::size_t ranks = GENERATE(2, 3, 4, 7);
  const std::size_t count = GENERATE(1, 7, 1000, 10007);
  const RingOptions options{.segment_bytes = 1024, .in_flight = 3};
  CAPTURE(to_string(wire), ranks, count);
  std::vector<std::vector<float>> arrays;
  for (std::size_t rank = 0; rank < ranks; ++rank) arrays.push_back(share(count, rank));
  std::vector<double> exact(count);
  for (const auto& array : arrays)
    for (std::size_t i = 0; i < count; ++i) exact[i] += array[i];

  auto links = loopback_ring(ranks, LoopbackDelivery::into_landing);
  {
    std::vector<std::jthread> threads;
    for (std::size_t rank = 0; rank < ranks; ++rank)
      threads.emplace_back([&, rank] {
        Ring ring(std::make_unique<CompressedLink>(std::move(links[rank]), wire, options.in_flight), rank, ranks,
                  std::make_shared<AllReduceContext>(0), options);
        ring.all_reduce(arrays[rank]);
      });
  }
  for (std::size_t rank = 1; rank < ranks; ++rank) CHECK(arrays[rank] == arrays[0]);
  // Each hop rounds a sum of at most ranks / 2 once.
  const double precision = wire == WireType::bf16 ? 0x1p-9 : 0x1p-12;
  const double allowed = precision * static_cast<double>(ranks * ranks) / 2;
  for (std::size_t i = 0; i < count; ++i) REQUIRE(std::abs(arrays[0][i] - exact[i]) <= allowed);
}

}  // namespace annulus
