#pragma once

#include <future>

#include "src/checkpoint/checkpoint_folder.h"

namespace annulus {

// Writes a run's checkpoints in sequence on a background thread while training continues. The next call to
// check() or finish() throws a failed write's Error. The destructor waits for the last write and ignores the Error.
class CheckpointWriter {
 public:
  explicit CheckpointWriter(CheckpointFolder folder) : folder_(std::move(folder)) {}

  const CheckpointFolder& folder() const { return folder_; }  // REQUIRES: no write in progress

  void begin(Checkpoint checkpoint);  // REQUIRES: finish() was called
  // Writes a checkpoint now. REQUIRES: finish() was called. Throws Error.
  void write(const CheckpointHeader& header, const ArraySource& arrays);
  void check();   // throws Error if the last write failed; does not block
  void finish();  // waits for the last write; throws Error if it failed

  double seconds() const { return seconds_; }  // total time for the finished writes

 private:
  CheckpointFolder folder_;
  double seconds_ = 0;
  std::future<double> writing_;  // last: it uses the folder
};

}  // namespace annulus
