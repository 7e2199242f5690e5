#include "src/train/changed_options.h"

#include <catch2/catch.hpp>

namespace annulus {

TEST_CASE("options that changed are named with both values, in the order of the new configuration") {
  const std::string before = "model=\"lenet\"\nepochs=10\nlr=0.1\nlr-steps=[3, 6]\nold=1\n";
  CHECK(changed_options(before, before).empty());
  CHECK(changed_options("", before).empty());
  CHECK(changed_options(before, "lr=0.05\nmodel=\"lenet\"\nepochs=20\nlr-steps=[3, 9]\nnew=2\n") ==
        "lr 0.1 -> 0.05, epochs 10 -> 20, lr-steps [3, 6] -> [3, 9]");
}

}  // namespace annulus
