#include "src/job/process_identity.h"

#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>

namespace annulus {

TEST_CASE("a process is opened only if its number, start and namespace are those described") {
  const ProcessIdentity own = own_identity();
  REQUIRE(own.number == static_cast<std::uint64_t>(getpid()));
  REQUIRE(own.space != 0);
  REQUIRE(own.start != 0);
  CHECK(open_process(own));
  CHECK_FALSE(open_process({own.number, own.space, own.start + 1}));  // the number was used again
  CHECK_FALSE(open_process({own.number, own.space + 1, own.start}));  // of another container
  CHECK_FALSE(open_process({own.number, own.space, 0}));
  CHECK_FALSE(open_process({own.number, 0, own.start}));
  CHECK_FALSE(open_process({0, own.space, own.start}));
}

TEST_CASE("a process that a signal has stopped is recognized") {
  const pid_t child = fork();
  if (child == 0)
    while (true) pause();
  int status = 0;
  CHECK_FALSE(is_stopped(static_cast<std::uint64_t>(child)));
  kill(child, SIGSTOP);
  REQUIRE(waitpid(child, &status, WUNTRACED) == child);
  CHECK(is_stopped(static_cast<std::uint64_t>(child)));
  kill(child, SIGKILL);
  waitpid(child, &status, 0);
  CHECK_FALSE(is_stopped(static_cast<std::uint64_t>(child)));  // it has ended
}

}  // namespace annulus
