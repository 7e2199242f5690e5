#pragma once

#include <cstddef>
#include <string>

namespace annulus {

// Whether what this process prints is seen on a terminal. Under mpirun every rank has a pseudo-terminal for its
// output, wherever mpirun's own goes, so there it is mpirun's that counts.
bool output_is_terminal();

// Tells how far something is: on a terminal a bar that is redrawn in place, otherwise a line now and then.
class Meter {
 public:
  // `shown`: false for the ranks that stay silent.
  explicit Meter(bool shown);

  void begin();
  bool due() const;  // whether it is time to show again
  // `done`: the share that is done, 0 to 1.
  void show(const std::string& what, double done, const std::string& details);
  void line(const std::string& text) const;  // replaces the bar
  void clear() const;                        // takes the bar away
  double seconds() const;                    // since the begin

 private:
  const bool shown_, terminal_;
  double begun_ = 0, drawn_ = 0;
  double done_before_ = -1;  // what is resumed does not begin at 0
};

// Tells how an epoch goes.
class Progress {
 public:
  Progress(bool shown, std::size_t epochs) : meter_(shown), epochs_(epochs) {}

  void begin_epoch(std::size_t epoch, std::size_t images);  // epoch 1 is the first
  void update(std::size_t images, double loss);             // so many of the epoch's images are done
  void line(const std::string& text) const { meter_.line(text); }

 private:
  Meter meter_;
  const std::size_t epochs_;
  std::size_t epoch_ = 0, images_ = 0, images_before_ = 0;
};

}  // namespace annulus
