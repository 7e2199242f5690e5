#include "src/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "kernels/clock.h"

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

Progress::Progress(bool shown, std::size_t epochs)
    : shown_(shown), terminal_(shown && output_is_terminal()), epochs_(epochs) {}

void Progress::begin_epoch(std::size_t epoch, std::size_t images) {
  epoch_ = epoch;
  images_ = images;
  images_before_ = 0;
  begun_ = drawn_ = now_seconds();
}

void Progress::update(std::size_t images, double loss) {
  const double now = now_seconds();
  if (images_before_ == 0) images_before_ = images;  // a resumed epoch does not begin at its first image
  if (!shown_ || now - drawn_ < (terminal_ ? kSecondsPerFrame : kSecondsPerLine)) return;
  drawn_ = now;
  const double fraction = static_cast<double>(images) / static_cast<double>(images_);
  const double rate = static_cast<double>(images - images_before_) / (now - begun_);
  const double left = rate > 0 ? static_cast<double>(images_ - images) / rate : 0;
  if (terminal_)
    draw_bar(fraction, loss, rate, left);
  else
    line(fmt::format("epoch {}/{}  {:3.0f} %  loss {:.4f}  {:.0f} images/s", epoch_, epochs_, 100 * fraction, loss,
                     rate));
}

void Progress::draw_bar(double fraction, double loss, double images_per_second, double seconds_left) const {
  const auto filled = static_cast<std::size_t>(fraction * kBarWidth);
  fmt::print("{}epoch {}/{} [{:=<{}}{:>{}}] {:3.0f} %  loss {:.4f}  {:.0f} images/s  {:.0f} s left", kClearLine, epoch_,
             epochs_, "", filled, ">", kBarWidth - filled + 1, 100 * fraction, loss, images_per_second, seconds_left);
  std::fflush(stdout);
}

void Progress::line(const std::string& text) {
  if (!shown_) return;
  fmt::print("{}{}\n", terminal_ ? kClearLine : "", text);
  std::fflush(stdout);
}

}  // namespace annulus
