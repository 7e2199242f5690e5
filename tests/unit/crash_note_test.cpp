#include "src/io/crash_note.h"

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <csignal>

namespace annulus {
namespace {

// Runs `crash` in a child. Returns the signal that ended it, and what it wrote to stderr.
template <class Crash>
std::pair<int, std::string> crashed(Crash crash) {
  std::array<int, 2> ends;
  REQUIRE(::pipe(ends.data()) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    for (const int signal : {SIGSEGV, SIGFPE, SIGABRT}) std::signal(signal, SIG_DFL);  // not Catch2's
    CrashNote::watch();
    ::dup2(ends[1], STDERR_FILENO);
    crash();
    ::_exit(0);
  }
  ::close(ends[1]);
  std::string text(1000, '\0');
  const ssize_t count = ::read(ends[0], text.data(), text.size());
  text.resize(count > 0 ? static_cast<std::size_t>(count) : 0);
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  return {WIFSIGNALED(status) ? WTERMSIG(status) : 0, text};
}

}  // namespace

TEST_CASE("a crash inside a library names the file", "[crash_note]") {
  const std::string place = "data.h5: /train";
  for (const int signal : {SIGSEGV, SIGABRT, SIGFPE}) {
    const auto [ended_by, text] = crashed([&] {
      const CrashNote note(place);
      signal == SIGABRT ? std::abort() : static_cast<void>(std::raise(signal));
    });
    CHECK(ended_by == signal);
    CHECK(text.starts_with("annulus: data.h5: /train: the HDF5 library crashed on it"));
    CHECK(std::count(text.begin(), text.end(), '\n') == 1);
  }
  const auto [ended_by, text] = crashed([&] {
    { const CrashNote note(place); }
    std::raise(SIGSEGV);
  });
  CHECK(ended_by == SIGSEGV);
  CHECK(text.empty());
}

}  // namespace annulus
