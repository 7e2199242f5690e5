#define CATCH_CONFIG_EXTERNAL_INTERFACES
#include <catch2/catch.hpp>
#include <csignal>
#include <iostream>
#include <sstream>

#include "collectives/world/mpi.h"
#include "kernels/base/subnormals.h"
#include "tests/catch2.h"

namespace {

int world_rank() {
  int rank = 0;
  annulus::check(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
  return rank;
}

// All ranks run the same tests together. If an assertion fails on one rank, the others would wait for it in the next
// collective call. So the rank that sees the first failure prints it and aborts the job.
struct EndTheJobOnFailure : Catch::TestEventListenerBase {
  using TestEventListenerBase::TestEventListenerBase;

  void testCaseStarting(const Catch::TestCaseInfo& test) override {
    TestEventListenerBase::testCaseStarting(test);
    name_ = test.name;
  }

  bool assertionEnded(const Catch::AssertionStats& stats) override {
    const Catch::AssertionResult& result = stats.assertionResult;
    if (result.isOk()) return true;
    std::cerr << "\nFAILED on rank " << world_rank() << ": " << name_ << "\n  " << result.getSourceInfo() << "\n  "
              << result.getExpression() << "\n  " << result.getExpandedExpression() << "\n  " << result.getMessage()
              << '\n';
    for (const Catch::MessageInfo& info : stats.infoMessages) std::cerr << "  " << info.message << '\n';
    std::cerr << std::flush;
    MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
    return false;
  }

 private:
  std::string name_;
};
CATCH_REGISTER_LISTENER(EndTheJobOnFailure)

}  // namespace

int main(int argc, char** argv) {
  annulus::flush_subnormals();  // as the program does
  // mpirun ends ranks with SIGTERM after a failure elsewhere, which Catch2 would report as theirs; its SIGKILL follows.
  sigset_t blocked;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGTERM);
  sigprocmask(SIG_BLOCK, &blocked, nullptr);
  const annulus::MpiSession mpi;
  const std::ostringstream unheard;
  std::streambuf* const terminal = std::cout.rdbuf();
  if (world_rank() != 0) std::cout.rdbuf(unheard.rdbuf());  // only rank 0 reports
  const int result = annulus::run_tests(argc, argv);
  std::cout.rdbuf(terminal);
  return result;
}
