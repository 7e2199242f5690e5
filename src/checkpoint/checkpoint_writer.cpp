#include "src/checkpoint/checkpoint_writer.h"

#include <chrono>

#include "kernels/base/clock.h"

namespace annulus {

void CheckpointWriter::begin(Checkpoint checkpoint) {
  writing_ = std::async(std::launch::async, [this, checkpoint = std::move(checkpoint)] {
    const double begun = now_seconds();
    folder_.write(checkpoint, arrays_of(checkpoint));
    return now_seconds() - begun;
  });
}

void CheckpointWriter::write(const CheckpointHeader& header, const ArraySource& arrays) {
  const double begun = now_seconds();
  folder_.write(header, arrays);
  seconds_ += now_seconds() - begun;
}

void CheckpointWriter::check() {
  if (writing_.valid() && writing_.wait_for(std::chrono::seconds(0)) == std::future_status::ready) finish();
}

void CheckpointWriter::finish() {
  if (writing_.valid()) seconds_ += writing_.get();
}

}  // namespace annulus
