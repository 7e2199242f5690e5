#include "src/train.h"

#include "src/alike.h"
#include "src/signals.h"
#include "src/training_run.h"

namespace annulus {

int train(const World& world, const TrainOptions& options) {
  keep_stop_signals_from_computing();
  check_same_command(world, "train");
  return TrainingRun(world, options).run();
}

}  // namespace annulus
