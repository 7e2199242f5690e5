#include "src/io/standard_output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <system_error>

#include "src/io/terminal.h"

namespace annulus {
namespace {

int first_error = 0;  // written under stdout's lock

// The process at a pipe's other end may have set it not to block.
bool may_write_again() {
  if (errno == EINTR) return true;
  if (errno != EAGAIN) return false;
  pollfd output{STDOUT_FILENO, POLLOUT, 0};
  return ::poll(&output, 1, -1) > 0 || errno == EINTR;
}

// Returns `size` in any case: the stream keeps on working.
ssize_t write_to_stdout(void* /*cookie*/, const char* text, std::size_t size) {
  for (std::size_t written = 0; written < size;) {
    const ssize_t count = ::write(STDOUT_FILENO, text + written, size - written);
    if (count >= 0) {
      written += static_cast<std::size_t>(count);
    } else if (!may_write_again()) {
      if (first_error == 0) first_error = errno;
      break;
    }
  }
  return static_cast<ssize_t>(size);
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
