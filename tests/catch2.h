#pragma once

namespace annulus {

// Runs the tests that the arguments select. Returns main's exit status.
int run_tests(int argc, char** argv);

}  // namespace annulus
