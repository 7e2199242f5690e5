#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>

#include "tests/gpu/emulator_tests/emulation_test.h"

Ending ending_of(const std::function<void()>& work) {
  std::array<int, 2> ends;
  if (pipe(ends.data()) != 0) return {-1, "no pipe"};
  const pid_t child = fork();
  if (child == 0) {
    for (const int number : {SIGSEGV, SIGABRT, SIGBUS}) signal(number, SIG_DFL);  // not the test framework's
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    alarm(20);
    work();
    _exit(0);
  }
  close(ends[1]);
  Ending ending{0, ""};
  std::array<char, 256> part;
  for (ssize_t got; (got = read(ends[0], part.data(), part.size())) > 0;)
    ending.text.append(part.data(), static_cast<std::size_t>(got));
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  ending.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  return ending;
}
