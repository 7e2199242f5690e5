#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>

#include "tests/catch2.h"

namespace annulus {

int run_tests(int argc, char** argv) {
  return Catch::Session().run(argc, argv);
}

}  // namespace annulus
