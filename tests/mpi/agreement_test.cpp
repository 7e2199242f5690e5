#include "src/job/agreement.h"

#include <catch2/catch.hpp>

#include "kernels/base/error.h"
#include "kernels/base/subnormals.h"
#include "src/job/consistency.h"

using namespace annulus;

namespace {

std::string complaint(const Agreement& agreement) {
  try {
    agreement.check();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("ranks with equal values agree") {
  const World world;
  Agreement agreement(world);
  agreement.check();
  agreement.add("the answer", 42);
  agreement.add("a long text", std::string(1000, 'x'));
  CHECK(complaint(agreement).empty());
}

TEST_CASE("the first difference is named on every rank, with each rank's value") {
  const World world;
  if (world.size() == 1) return;
  const bool last = world.rank() == world.size() - 1;
  Agreement agreement(world);
  agreement.add("the same", 1);
  agreement.add("the rate", last ? 0.2 : 0.1);
  agreement.add("another difference", last);
  CHECK(complaint(agreement) ==
        fmt::format("the ranks are inconsistent: the rate is 0.1 on rank 0, but 0.2 on rank {}", world.size() - 1));
}

TEST_CASE("ranks with the same value are named together") {
  const World world;
  if (world.size() < 3) return;
  Agreement agreement(world);
  agreement.add("the size", world.rank() < 2 ? world.rank() : 7);
  const std::string text = complaint(agreement);
  CHECK_THAT(text, Catch::Contains("the size is 0 on rank 0, but 1 on rank 1, 7 on rank"));
  if (world.size() == 4) CHECK_THAT(text, Catch::EndsWith("7 on ranks 2 and 3"));
}

TEST_CASE("long values are not printed") {
  const World world;
  if (world.size() == 1) return;
  Agreement agreement(world);
  agreement.add("the network", std::string(1000, world.rank() == 1 ? 'x' : 'y'));
  CHECK(complaint(agreement) == "the ranks are inconsistent: the network differs between rank 0 and rank 1");
}

TEST_CASE("the same value under another name is a difference") {
  const World world;
  if (world.size() == 1) return;
  Agreement agreement(world);
  agreement.add(world.root() ? "one" : "other", 1);
  CHECK_THAT(complaint(agreement), Catch::Contains("compare different fields"));
}

TEST_CASE("a rank that does not flush subnormal numbers is named") {
  const World world;
  check_same_command(world, "train");
  if (world.size() == 1) return;
  if (world.rank() == 1) _MM_SET_DENORMALS_ZERO_MODE(_MM_DENORMALS_ZERO_OFF);
  std::string text;
  try {
    check_same_command(world, "train");
  } catch (const Error& error) {
    text = error.what();
  }
  flush_subnormals();
  CHECK_THAT(text,
             Catch::EndsWith("the treatment of subnormal numbers is flush to zero on rank 0, but keep on rank 1"));
}
