#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>

#include "kernels/base/subnormals.h"

int main(int argc, char** argv) {
  annulus::flush_subnormals();  // as the program does
  return Catch::Session().run(argc, argv);
}
