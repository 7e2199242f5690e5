#include "src/step/gradient_stack.h"

#include <catch2/catch.hpp>

#include "collectives/all_reduce.h"
#include "tests/unit/test_device.h"

namespace annulus {
namespace {

constexpr std::size_t kFlags = 2, kCount = 6;  // floats of the arena

class NoAllReduce final : public AllReduce {
 public:
  NoAllReduce() : AllReduce({"test", "test"}) {}
  DeviceView allocate(std::size_t, Memory) override { return {}; }
  Ticket enqueue(DeviceView, const Request&) override { return 0; }
  void wait(Ticket) override {}
};

// The sums of parts whose gradients are 1, 10, 100, ... in every place, but flags that stay.
struct Sums {
  Sums() { std::ranges::fill(arena, 7.0f); }

  void write(std::size_t part) {
    float value = 1;
    for (std::size_t i = 0; i < part; ++i) value *= 10;
    std::fill(arena.begin() + kFlags, arena.end(), value);
  }
  std::vector<float> run(std::size_t parts) {
    stack.begin(parts);
    for (std::size_t part = 0; part + 1 < parts; ++part) {
      write(part);
      stack.push();
    }
    stack.begin_last();
    write(parts - 1);
    for (const std::size_t count : {std::size_t{1}, kFlags + 1, kFlags + 1, kCount}) stack.add(count);
    return arena;
  }

  std::unique_ptr<Device> device = make_device("cpu", 1);
  NoAllReduce all_reduce;
  std::vector<float> arena = std::vector<float>(kCount);
  const DeviceView whole{reinterpret_cast<std::byte*>(arena.data()), kCount * sizeof(float)};
  GradientStack stack{*device, all_reduce, whole,
                      whole.slice(kFlags * sizeof(float), (kCount - kFlags) * sizeof(float))};
};

}  // namespace

TEST_CASE("the last part's gradients become the sum of all parts', and the flags stay") {
  Sums sums;
  const std::size_t most = GENERATE(1, 3);
  sums.stack.plan_parts(most);
  for (std::size_t parts = 1; parts <= most; ++parts) {
    const float expected = parts == 1 ? 1 : parts == 2 ? 11 : 111;
    CHECK(sums.run(parts) == std::vector<float>{7, 7, expected, expected, expected, expected});
  }
}

TEST_CASE("shards of a whole tree are added to its sum") {
  Sums sums;
  sums.stack.plan_shards(tree_order(0, 1, 4));
  CHECK(sums.run(4) == std::vector<float>{7, 7, 1111, 1111, 1111, 1111});
}

}  // namespace annulus
