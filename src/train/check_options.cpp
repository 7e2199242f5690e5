#include "src/train/check_options.h"

#include "kernels/base/error.h"
#include "src/train/combinations.h"

namespace annulus {
namespace {

void check(const SurvivalOptions& options) {
  const SurvivalOptions defaults;
  if (!options.on && (options.min_ranks != defaults.min_ranks || options.lost_after != defaults.lost_after))
    fail("--min-ranks and --lost-after belong to --survive: add it, or remove them");
}

}  // namespace

void check(const TrainOptions& options) {
  if (options.all_reduce == "none")
    fail(
        "--all-reduce none does not train; to measure the cost of communication, run: annulus bench step --all-reduce "
        "auto,none");
  check(options.survival);
  if (options.optimizer.kind != "muon" && (options.muon_rate > 0 || !options.muon_except.empty()))
    fail("--muon-lr and --muon-except belong to --optimizer muon, and this is {}", options.optimizer.kind);
  check_combinations(options);
  if (options.take_over && !options.resume) fail("--take-over requires --resume: add it");
  if (options.dry_run && options.take_over)
    fail("--dry-run does not wait for another job, as --take-over does: remove one of them");
  if (options.dry_run && !options.device.tuning.empty())
    fail("--dry-run writes nothing, and --tune a file: remove one of them");
  if (options.dry_run && !options.json.empty()) fail("--dry-run has no results for --json: remove one of them");
  const ScheduleOptions& schedule = options.schedule;
  if (schedule.kind == "plateau" && options.patience > 0 && options.patience <= schedule.patience + 1)
    fail("--patience {} ends the run before --schedule plateau:{} lowers the rate: give a larger --patience",
         options.patience, schedule.patience);
  check(schedule, options.epochs);
}

}  // namespace annulus
