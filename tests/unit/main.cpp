#include "kernels/base/subnormals.h"
#include "tests/catch2.h"

int main(int argc, char** argv) {
  annulus::flush_subnormals();  // as the program does
  return annulus::run_tests(argc, argv);
}
