#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>

#include "collectives/world/mpi.h"

namespace annulus {

TEST_CASE("a crash while MPI is finalized does not change the status of a process") {
  const pid_t child = ::fork();
  if (child == 0) {
    MpiSession::set_status_after_crash(75);
    std::raise(SIGSEGV);
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 75);
}

}  // namespace annulus
