#include "src/step/bucket_plan.h"

#include <catch2/catch.hpp>

#include "models/zoo/zoo.h"
#include "tests/unit/test_device.h"

namespace annulus {
namespace {

// An all-reduce over this number of ranks, which does nothing.
class Ranks final : public AllReduce {
 public:
  explicit Ranks(std::size_t number)
      : AllReduce({.description = "", .order = "", .all_verbs = true}), number_(number) {}

  DeviceView allocate(std::size_t, Memory) override { return {}; }
  Ticket enqueue(DeviceView, const Request&) override { return 0; }
  Range chunk(std::size_t count) const override { return {0, count / number_}; }
  void wait(Ticket) override {}

 private:
  std::size_t number_;
};

}  // namespace

TEST_CASE("a single rank updates in few buckets, and reads the metrics before the rest of backward") {
  const auto device = test::make_device(1);
  Model model(*device, make_model("lenet", zoo_entry("lenet").task()), Mode::training, 2);
  const std::size_t end = model.parameters().gradients().bytes / sizeof(float);
  Ranks one(1), two(2);
  const auto cut = [&](AllReduce& ranks, const BucketOptions& options) {
    return cut_gradients(model, ranks, options, 64, {}, {});
  };
  CHECK(resolve({}, model.parameters(), one).bytes == 64 << 20);
  CHECK(resolve({.bytes = 4096}, model.parameters(), one).bytes == 4096);
  const GradientBuckets alone = cut(one, {});
  REQUIRE(alone.size() == 2);
  CHECK(alone.range(0) == Range{0, 16});
  CHECK(alone.range(1) == Range{16, end});
  CHECK(resolve({}, model.parameters(), two).bytes == 64 << 10);
  CHECK(cut(two, {}).size() > 3);
  CHECK(cut(two, {}).range(0).end > 16);
}

TEST_CASE("the uppermost layers' buckets are updated late, if they are large enough") {
  const std::vector<Range> buckets{{0, 16}, {16, 100}, {100, 180}, {180, 190}, {190, 200}};
  const auto late = [&](std::size_t from, std::size_t least) { return late_buckets(buckets, from, least); };
  CHECK(late(0, 0) == Range{0, 2});  // the last two are less than an eighth of all
  CHECK(late(0, 400) == Range{0, 2});
  CHECK(late(0, 401).size() == 0);
  CHECK(late(16, 0) == Range{1, 2});
  CHECK(late(100, 0).size() == 0);
  CHECK(late_buckets(std::vector<Range>{{0, 16}, {16, 200}}, 16, 0).size() == 0);
  CHECK(late_buckets({}, 0, 0).size() == 0);
}

}  // namespace annulus
