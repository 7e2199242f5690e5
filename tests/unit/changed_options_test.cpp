#include "src/train/changed_options.h"

#include <catch2/catch.hpp>

namespace annulus {

TEST_CASE("options that changed are named with both values, in the order of the new configuration") {
  const std::string before = "model=\"lenet\"\nepochs=10\nlr=0.1\nfreeze=[\"a\", \"b\"]\nold=1\n";
  CHECK(changed_options(before, before).empty());
  CHECK(changed_options("", before).empty());
  CHECK(changed_options(before, "lr=0.05\nmodel=\"lenet\"\nepochs=20\nfreeze=\"a\"\nnew=2\n") ==
        "lr 0.1 -> 0.05, epochs 10 -> 20, freeze a,b -> a");
}

TEST_CASE("numbers that are written in another way have not changed") {
  const std::string before = "weight-decay=0.0001\nwarmup=0.5\naugment=[\"imagenet\", \"mixup=0.20\"]\nlr=0.1\n";
  CHECK(
      changed_options(before, "weight-decay=\"1e-4\"\nwarmup=\".5\"\naugment=[\"imagenet\", \"mixup=0.2\"]\n").empty());
  CHECK(changed_options(before, "lr=0.10000001\n") == "lr 0.1 -> 0.10000001");
}

TEST_CASE("an option of an earlier version is compared with the option that it has become") {
  const std::string now = "schedule=\"step:3,6\"\nwarmup=\"5\"\n";
  CHECK(changed_options("schedule=\"step\"\nlr-steps=[\"3\", \"6\"]\nwarmup=5\nwarmup-from=\"auto\"\n", now).empty());
  CHECK(changed_options("schedule=\"step\"\nlr-steps=\"3\"\nwarmup=5\nwarmup-from=0.1\n", now) ==
        "schedule step:3 -> step:3,6, warmup 5:0.1 -> 5");
}

}  // namespace annulus
