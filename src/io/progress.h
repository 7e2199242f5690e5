#pragma once

#include <cstddef>
#include <cstdio>
#include <string>

#include "src/io/sample_unit.h"

namespace annulus {

// Displays progress: on a terminal a bar that is redrawn in place.
class Meter {
 public:
  enum class Style {
    log,  // on stdout; if that is not a terminal, a line now and then
    bar   // on stderr; if that is not a terminal, nothing. For commands whose stdout is their result
  };

  // `shown`: false on ranks that print nothing.
  Meter(bool shown, Style style);
  ~Meter() { clear(); }

  void begin(double done = 0);  // resumed work does not begin at 0
  bool due() const;             // it is time to call show() again
  // `done`: the completed share, 0 to 1.
  void show(const std::string& what, double done, const std::string& details);
  // If it is due.
  void show_samples(const std::string& what, std::size_t samples, std::size_t of_samples, const SampleUnit& unit = {});
  void line(const std::string& text);         // replaces the bar
  void line_anyway(const std::string& text);  // also with --quiet, see print_anyway()
  void clear();                               // removes the bar
  double seconds() const;                     // since begin()

 private:
  std::FILE* stream_;
  bool shown_, terminal_, logs_;
  double begun_ = 0, drawn_ = 0;
  double done_before_ = 0;
  bool has_bar_ = false;
};

// Displays the progress of an epoch, or of a part of an epoch.
class Progress {
 public:
  explicit Progress(bool shown) : meter_(shown, Meter::Style::log) {}

  void begin(const std::string& what, std::size_t samples, const SampleUnit& unit);  // counted from the epoch's first
  void update(std::size_t samples, double loss);                                     // that are done in the epoch
  void line(const std::string& text) { meter_.line(text); }
  void line_anyway(const std::string& text) { meter_.line_anyway(text); }
  void show_here() { meter_ = Meter(true, Meter::Style::log); }  // this rank prints from now on

 private:
  Meter meter_;
  std::string what_;
  std::size_t samples_ = 0, samples_before_ = 0;
  SampleUnit unit_;
};

}  // namespace annulus
