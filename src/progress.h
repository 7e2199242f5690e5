#pragma once

#include <cstddef>
#include <string>

namespace annulus {

// Whether what this process prints is seen on a terminal. Under mpirun every rank has a pseudo-terminal for its
// output, wherever mpirun's own goes, so there it is mpirun's that counts.
bool output_is_terminal();

// Tells how an epoch goes: on a terminal a bar that is redrawn in place, otherwise a line now and then.
class Progress {
 public:
  // `shown`: false for the ranks that stay silent.
  Progress(bool shown, std::size_t epochs);

  void begin_epoch(std::size_t epoch, std::size_t images);  // epoch 1 is the first
  void update(std::size_t images, double loss);             // so many of the epoch's images are done
  void line(const std::string& text);                       // replaces the bar

 private:
  void draw_bar(double fraction, double loss, double images_per_second, double seconds_left) const;

  const bool shown_, terminal_;
  const std::size_t epochs_;
  std::size_t epoch_ = 0, images_ = 0, images_before_ = 0;
  double begun_ = 0, drawn_ = 0;
};

}  // namespace annulus
