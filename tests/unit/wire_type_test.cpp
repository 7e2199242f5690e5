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

TEST_CASE("8-bit values have a scale for each block, and lose at most half of it") {
  const std::size_t count = GENERATE(1, 128, 129, 1000);
  std::vector<float> values = share(count, 1);
  for (std::size_t i = 0; i < count; ++i) values[i] *= std::exp2(-static_cast<float>(i / kInt8Block * 30));
  std::vector<float> rounded = values;
  round_to(WireType::int8, rounded);
  for (std::size_t begin = 0; begin < count; begin += kInt8Block) {
    const std::size_t end = std::min(begin + kInt8Block, count);
    float largest = 0;
    for (std::size_t i = begin; i < end; ++i) largest = std::max(largest, std::abs(values[i]));
    const float scale = largest / 127 * (1 + 0x1p-15f);
    for (std::size_t i = begin; i < end; ++i) {
      CAPTURE(count, i);
      if (largest < 0x1p-119f) {  // the scale would be subnormal
        REQUIRE(rounded[i] == 0);
        continue;
      }
      REQUIRE(std::abs(rounded[i] - values[i]) <= scale * 0.50001f);
      REQUIRE(rounded[i] + (values[i] - rounded[i]) == values[i]);  // the error is exact
      if (std::abs(values[i]) == largest) REQUIRE(std::abs(rounded[i]) == Approx(largest).epsilon(0x1p-14));
    }
  }
  std::vector<float> again = rounded;
  round_to(WireType::int8, again);
  CHECK(again == rounded);
  std::vector<std::byte> coded(coded_bytes(WireType::int8, count));
  CHECK(coded.size() == count + 4 * ((count + 127) / 128));
  encode(WireType::int8, values, coded);
  decode(WireType::int8, coded, again);
  CHECK(again == rounded);
}

TEST_CASE("a value that is not finite makes its 8-bit block NaN, and no other") {
  const float value = GENERATE(std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity());
  std::vector<float> values(2 * kInt8Block, 1.0f);
  values[3] = value;
  round_to(WireType::int8, values);
  for (std::size_t i = 0; i < values.size(); ++i)
    CHECK((i < kInt8Block ? std::isnan(values[i]) : values[i] == Approx(1).epsilon(0x1p-14)));
}

TEST_CASE("8-bit messages with error feedback lose nothing") {
  const std::size_t ranks = GENERATE(2, 3, 4, 7);
  const std::size_t count = GENERATE(1, 1000, 10007);
  const RingOptions options{.segment_bytes = 1024, .in_flight = 3};
  constexpr std::size_t kRounds = 3;
  std::vector<std::vector<float>> errors(ranks, std::vector<float>(count));
  std::vector<std::vector<std::vector<float>>> sums(ranks);  // of each round
  auto links = loopback_ring(ranks, LoopbackDelivery::into_landing);
  {
    std::vector<std::jthread> threads;
    for (std::size_t rank = 0; rank < ranks; ++rank)
      threads.emplace_back([&, rank] {
        Ring ring(std::make_unique<CompressedLink>(std::move(links[rank]), WireType::int8, options.in_flight), rank,
                  ranks, std::make_shared<AllReduceContext>(0), options);
        for (std::size_t round = 0; round < kRounds; ++round) {
          std::vector<float> values = share(count, ranks * round + rank);
          ring.all_reduce_with_feedback(values, errors[rank]);
          sums[rank].push_back(std::move(values));
        }
      });
  }
  double largest = 0;
  for (std::size_t rank = 1; rank < ranks; ++rank) CHECK(sums[rank] == sums[0]);
  std::vector<double> exact(count), found(count);
  for (std::size_t sample = 0; sample < ranks * kRounds; ++sample)
    std::ranges::transform(exact, share(count, sample), exact.begin(), std::plus<>());
  for (std::size_t i = 0; i < count; ++i) {
    for (const auto& sum : sums[0]) found[i] += sum[i];
    for (const auto& error : errors) {
      found[i] += error[i];
      largest = std::max(largest, static_cast<double>(std::abs(error[i])));
    }
    REQUIRE(found[i] == Approx(exact[i]).margin(1e-5));
  }
  CHECK(largest > (count > 1 ? 1e-4 : 0));             // a single value is the largest of its block
  CHECK(largest <= static_cast<double>(ranks) / 127);  // about half a scale of the largest sum
}

TEST_CASE("wire formats are parsed by name") {
  for (const WireType wire : {WireType::fp32, WireType::bf16, WireType::fp16, WireType::int8})
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
