#pragma once

#include <future>

#include "src/checkpoint/checkpoint_folder.h"

namespace annulus {

// Writes a run's checkpoints on a thread of its own while training goes on, one after the other. What goes wrong there
// is thrown by the next call that looks. When this ends, the last one is written, or has failed unsaid.
class CheckpointWriter {
 public:
  explicit CheckpointWriter(CheckpointFolder folder) : folder_(std::move(folder)) {}

  const CheckpointFolder& folder() const { return folder_; }  // not to be read while one is being written

  void begin(Checkpoint checkpoint);  // after finish()
  void look();                        // throws Error where the last one failed; waits for nothing
  void finish();                      // the same, and waits until it is written

  double seconds() const { return seconds_; }  // spent writing those that are finished

 private:
  CheckpointFolder folder_;
  double seconds_ = 0;
  std::future<double> writing_;  // last: it uses the folder
};

}  // namespace annulus
