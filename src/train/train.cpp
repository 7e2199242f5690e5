#include "src/train/train.h"

#include "src/job/consistency.h"
#include "src/job/signals.h"
#include "src/train/training_run.h"

namespace annulus {

int train(const World& world, const TrainOptions& options, Watchdog& watchdog) {
  keep_stop_signals_from_computing();
  watchdog.activity().enter(Activity::Phase::comparing);
  check_same_command(world, "train");
  watchdog.activity().enter(Activity::Phase::opening);
  const int status = TrainingRun(world, options, watchdog).run();
  watchdog.activity().enter(Activity::Phase::ending);
  return status;
}

}  // namespace annulus
