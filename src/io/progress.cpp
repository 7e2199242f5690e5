#include "src/io/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "kernels/base/clock.h"
#include "src/io/printable.h"

namespace annulus {
namespace {

constexpr double kSecondsPerFrame = 0.1;
constexpr double kSecondsPerLine = 10;
constexpr std::size_t kBarWidth = 30;
constexpr const char* kClearLine = "\r\x1b[2K";

}  // namespace

bool output_is_terminal() {
  if (!isatty(STDOUT_FILENO)) return false;
  if (std::getenv("OMPI_COMM_WORLD_RANK") == nullptr) return true;
  std::error_code none;
  const auto launcher = std::filesystem::read_symlink(fmt::format("/proc/{}/fd/1", getppid()), none).string();
  return launcher.starts_with("/dev/pts/") || launcher.starts_with("/dev/tty");
}

Meter::Meter(bool shown) : shown_(shown), terminal_(shown && output_is_terminal()) {}

void Meter::begin() {
  begun_ = drawn_ = now_seconds();
  done_before_ = -1;
}

bool Meter::due() const {
  return shown_ && now_seconds() - drawn_ >= (terminal_ ? kSecondsPerFrame : kSecondsPerLine);
}

double Meter::seconds() const {
  return now_seconds() - begun_;
}

void Meter::show(const std::string& what, double done, const std::string& details) {
  drawn_ = now_seconds();
  if (!terminal_) return line(fmt::format("{}  {:3.0f} %  {}", what, 100 * done, details));
  if (done_before_ < 0) done_before_ = done;
  const double rate = (done - done_before_) / seconds();
  const std::string left = rate > 0 ? fmt::format("{:.0f} s left", (1 - done) / rate) : "";
  const auto filled = static_cast<std::size_t>(done * kBarWidth);
  fmt::print("{}{} [{:=<{}}{:>{}}] {:3.0f} %  {}  {}", kClearLine, what, "", filled, ">", kBarWidth - filled + 1,
             100 * done, details, left);
  std::fflush(stdout);
}

void Meter::clear() const {
  if (terminal_) fmt::print("{}", kClearLine);
}

void Meter::line(const std::string& text) const {
  if (!shown_) return;
  fmt::print("{}{}\n", terminal_ ? kClearLine : "", printable_lines(text));
  std::fflush(stdout);
}

void Progress::begin_epoch(std::size_t epoch, std::size_t images) {
  epoch_ = epoch;
  images_ = images;
  images_before_ = 0;
  meter_.begin();
}

void Progress::update(std::size_t images, double loss) {
  if (images_before_ == 0) images_before_ = images;  // a resumed epoch does not begin at its first image
  if (!meter_.due()) return;
  const double rate = static_cast<double>(images - images_before_) / meter_.seconds();
  meter_.show(fmt::format("epoch {}/{}", epoch_, epochs_), static_cast<double>(images) / static_cast<double>(images_),
              fmt::format("loss {:.4f}  {:.0f} images/s", loss, rate));
}

}  // namespace annulus
