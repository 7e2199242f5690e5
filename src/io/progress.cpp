#include "src/io/progress.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/base/clock.h"
#include "src/io/duration.h"
#include "src/io/printable.h"
#include "src/io/standard_output.h"
#include "src/io/terminal.h"

namespace annulus {
namespace {

constexpr double kSecondsPerFrame = 0.1;
constexpr double kSecondsPerLine = 10;
constexpr std::size_t kBarWidth = 20;
constexpr const char* kClearLine = "\r\x1b[2K";
// A line longer than the terminal is cut off instead of continued on a second line, which would remain.
constexpr const char *kCutLines = "\x1b[?7l", *kWrapLines = "\x1b[?7h";

}  // namespace

Meter::Meter(bool shown, Style style)
    : stream_(style == Style::log ? stdout : stderr),
      shown_(shown),
      terminal_(shown && is_terminal(stream_)),
      logs_(shown && style == Style::log && !terminal_) {}

void Meter::begin(double done) {
  begun_ = drawn_ = now_seconds();
  done_before_ = done;
}

bool Meter::due() const {
  if (!terminal_ && !logs_) return false;
  return now_seconds() - drawn_ >= (terminal_ ? kSecondsPerFrame : kSecondsPerLine);
}

double Meter::seconds() const {
  return now_seconds() - begun_;
}

void Meter::show(const std::string& what, double done, const std::string& details) {
  drawn_ = now_seconds();
  const double rate = (done - done_before_) / seconds();
  const std::string left = rate > 0 ? duration_text((1 - done) / rate) + " left  " : "";
  if (logs_) return line(fmt::format("{}  {:3.0f} %  {}{}", what, 100 * done, left, details));
  if (!terminal_) return;
  const auto filled = static_cast<std::size_t>(done * kBarWidth);
  fmt::print(stream_, "{}{}{} [{:=<{}}{:<{}}] {:3.0f} %  {}{}{}", kClearLine, kCutLines, what, "", filled, ">",
             kBarWidth - filled + 1, 100 * done, left, details, kWrapLines);
  std::fflush(stream_);
  has_bar_ = true;
}

void Meter::show_samples(const std::string& what, std::size_t samples, std::size_t of_samples, const SampleUnit& unit) {
  if (!due()) return;
  const double done = static_cast<double>(samples) / static_cast<double>(of_samples);
  const double rate = (done - done_before_) * unit.count(of_samples) / seconds();
  show(what, done,
       fmt::format("{:.0f}/{:.0f} {}  {:.0f} {}/s", unit.count(samples), unit.count(of_samples), unit.name, rate,
                   unit.name));
}

void Meter::clear() {
  if (!has_bar_) return;
  fmt::print(stream_, "{}", kClearLine);
  std::fflush(stream_);
  has_bar_ = false;
}

void Meter::line(const std::string& text) {
  if (!shown_) return;
  clear();
  fmt::print("{}\n", printable_lines(text));
  std::fflush(stdout);
}

void Meter::line_anyway(const std::string& text) {
  if (!shown_) return;
  clear();
  print_anyway(printable_lines(text));
}

void Progress::begin(const std::string& what, std::size_t samples, const SampleUnit& unit) {
  what_ = what;
  samples_ = samples;
  samples_before_ = 0;
  unit_ = unit;
  meter_.begin();
}

void Progress::update(std::size_t samples, double loss) {
  const double done = std::min(1.0, static_cast<double>(samples) / static_cast<double>(samples_));
  if (samples_before_ == 0) {  // a resumed epoch does not begin at the first sample
    samples_before_ = samples;
    meter_.begin(done);
  }
  if (!meter_.due()) return;
  const double rate = unit_.count(samples - samples_before_) / meter_.seconds();
  meter_.show(what_, done, fmt::format("loss {:.4f}  {:.0f} {}/s", loss, rate, unit_.name));
}

}  // namespace annulus
