#include "src/io/terminal.h"

#include <fmt/color.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string_view>

namespace annulus {
namespace {

std::string_view variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool is_pipe(int descriptor) {
  struct stat found {};
  return ::fstat(descriptor, &found) == 0 && S_ISFIFO(found.st_mode);
}

// Open MPI connects stdout to a pseudo-terminal and stderr to a pipe.
bool launcher_shows_on_terminal(int descriptor) {
  if (!::isatty(descriptor) && !(descriptor == STDERR_FILENO && is_pipe(descriptor))) return false;
  std::error_code none;
  const std::string file =
      std::filesystem::read_symlink(fmt::format("/proc/{}/fd/{}", ::getppid(), descriptor), none).string();
  return file.starts_with("/dev/pts/") || file.starts_with("/dev/tty");
}

fmt::text_style style_of(Emphasis emphasis) {
  switch (emphasis) {
    case Emphasis::error:
      return fmt::fg(fmt::terminal_color::red);
    case Emphasis::warning:
      return fmt::fg(fmt::terminal_color::yellow);
    case Emphasis::headline:
      return fmt::emphasis::bold;
  }
  return {};
}

}  // namespace

bool is_terminal(std::FILE* stream) {
  if (variable("TERM") == "dumb") return false;
  const int descriptor =
      stream == stdout ? STDOUT_FILENO : ::fileno(stream);  // stdout may have none, see standard_output.h
  const bool under_mpirun = std::getenv("OMPI_COMM_WORLD_RANK") != nullptr;
  return under_mpirun ? launcher_shows_on_terminal(descriptor) : ::isatty(descriptor) == 1;
}

std::string emphasized(std::FILE* stream, Emphasis emphasis, const std::string& text) {
  if (!variable("NO_COLOR").empty() || !is_terminal(stream)) return text;
  return fmt::format(style_of(emphasis), "{}", text);
}

std::string warning_mark() {
  return emphasized(stdout, Emphasis::warning, "warning: ");
}

void write_to_stderr(std::string_view text) {
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
}

}  // namespace annulus
