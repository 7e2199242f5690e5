#include "src/io/standard_output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <system_error>

#include "kernels/base/error.h"
#include "src/io/terminal.h"

namespace annulus {
namespace {

int first_error = 0;                                 // written under stdout's lock
int report = STDOUT_FILENO, anyway = STDOUT_FILENO;  // the descriptors behind write_report() and print_anyway()

// The process at a pipe's other end may have set it not to block.
bool may_write_again(int descriptor) {
  if (errno == EINTR) return true;
  if (errno != EAGAIN) return false;
  pollfd output{descriptor, POLLOUT, 0};
  return ::poll(&output, 1, -1) > 0 || errno == EINTR;
}

// Returns 0, or the error's number.
int write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(descriptor, text.data(), text.size());
    if (count >= 0)
      text.remove_prefix(static_cast<std::size_t>(count));
    else if (!may_write_again(descriptor))
      return errno;
  }
  return 0;
}

// Returns `size` in any case: the stream keeps on working.
ssize_t write_to_stdout(void* /*cookie*/, const char* text, std::size_t size) {
  if (const int error = write_all(STDOUT_FILENO, {text, size}); first_error == 0) first_error = error;
  return static_cast<ssize_t>(size);
}

// Makes stdout write where `descriptor` does. Returns a descriptor for what stdout was before.
int redirect_stdout(int descriptor) {
  const int before = ::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  ::dup2(descriptor, STDOUT_FILENO);
  return before;
}

}  // namespace

void prepare_standard_streams() {
  for (int number = STDIN_FILENO; number <= STDERR_FILENO; ++number)
    if (::fcntl(number, F_GETFD) == -1) static_cast<void>(::open("/dev/null", O_RDWR));  // gets the lowest free number
  std::FILE* const stream =
      ::fopencookie(nullptr, "w", {.read = nullptr, .write = write_to_stdout, .seek = nullptr, .close = nullptr});
  if (stream == nullptr) return;
  std::setvbuf(stream, nullptr, ::isatty(STDOUT_FILENO) ? _IOLBF : _IOFBF, BUFSIZ);
  stdout = stream;  // the GNU C library allows this
}

void arrange_output(bool for_report, bool quiet) {
  std::fflush(stdout);
  if (for_report) report = redirect_stdout(STDERR_FILENO);
  if (!quiet) return;
  const int nothing = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  anyway = redirect_stdout(nothing);
  ::close(nothing);
}

void write_report(std::string_view text) {
  std::fflush(stdout);
  if (const int error = write_all(report, text); error != 0)
    fail("cannot write to standard output: {}", std::generic_category().message(error));
}

void print_anyway(std::string_view line) {
  if (anyway == STDOUT_FILENO) {
    fmt::print("{}\n", line);
    std::fflush(stdout);
  } else {
    write_all(anyway, fmt::format("{}\n", line));
  }
}

void outlive_reader() {
  std::signal(SIGPIPE, SIG_IGN);
}

int status_after_output(int status) {
  std::fflush(stdout);
  if (first_error == 0) return status;
  write_to_stderr(fmt::format("{}cannot write to standard output: {}\n",
                              emphasized(stderr, Emphasis::error, "annulus: "),
                              std::generic_category().message(first_error)));
  return status == EXIT_SUCCESS && first_error != EPIPE ? EXIT_FAILURE : status;
}

}  // namespace annulus
