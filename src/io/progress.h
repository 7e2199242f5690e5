#pragma once

#include <cstddef>
#include <string>

namespace annulus {

// Returns whether this process's output goes to a terminal. Under mpirun every rank has a pseudo-terminal for its
// output, whatever mpirun's own output is, so there mpirun's is checked.
bool output_is_terminal();

// Displays progress: on a terminal a bar that is redrawn in place, otherwise a line now and then.
class Meter {
 public:
  // `shown`: false on ranks that print nothing.
  explicit Meter(bool shown);

  void begin();
  bool due() const;  // it is time to call show() again
  // `done`: the completed share, 0 to 1.
  void show(const std::string& what, double done, const std::string& details);
  void line(const std::string& text) const;  // replaces the bar
  void clear() const;                        // removes the bar
  double seconds() const;                    // since begin()

 private:
  const bool shown_, terminal_;
  double begun_ = 0, drawn_ = 0;
  double done_before_ = -1;  // resumed work does not begin at 0
};

// Displays the progress of an epoch.
class Progress {
 public:
  Progress(bool shown, std::size_t epochs) : meter_(shown), epochs_(epochs) {}

  void begin_epoch(std::size_t epoch, std::size_t images);  // epoch 1 is the first
  void update(std::size_t images, double loss);             // `images` of the epoch are done
  void line(const std::string& text) const { meter_.line(text); }

 private:
  Meter meter_;
  const std::size_t epochs_;
  std::size_t epoch_ = 0, images_ = 0, images_before_ = 0;
};

}  // namespace annulus
