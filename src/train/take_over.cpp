#include "src/train/take_over.h"

#include <array>
#include <chrono>
#include <optional>
#include <thread>

#include "kernels/base/error.h"
#include "src/io/folder_claim.h"
#include "src/io/printable.h"
#include "src/job/signals.h"

namespace annulus {
namespace {

constexpr std::chrono::milliseconds kPause(200);

FolderClaim claim_next(const std::filesystem::path& run, RunRecord& record) {
  const std::filesystem::path next = next_claim(run);
  if (is_claimed(next)) fail("{}: another job waits to take this run over already ({})", run.string(), claimant(next));
  FolderClaim claim(next, true, "start this job later");
  record.progress.line(printable(fmt::format(
      "waiting for the job that trains in {} ({}): it ends at its next checkpoint", run.string(), claimant(run))));
  return claim;
}

// Returns false if a signal ended the wait. Collective.
bool wait_for_end(const World& world, const std::filesystem::path& run, Activity& activity) {
  while (true) {
    std::array<double, 2> flags{stop_requested() ? 1.0 : 0.0, world.root() && is_claimed(run) ? 1.0 : 0.0};
    world.maximum(flags);
    const auto [stop, claimed] = flags;
    if (stop > 0) return false;
    if (claimed == 0) return true;
    activity.tick();
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace

bool take_over(const World& world, const std::filesystem::path& run, RunRecord& record,
               const std::function<void()>& claim) {
  watch_for_stop_signals();
  std::optional<FolderClaim> next;
  if (world.root() && is_claimed(run)) next.emplace(claim_next(run, record));
  const bool free = wait_for_end(world, run, record.activity);
  if (free && world.root()) {
    claim();
    if (!is_claimed(run)) fail("--take-over needs file locks, which the file system of {} does not have", run.string());
  }
  if (next) next->remove();
  if (!free) record.progress.line("stopped while waiting, as requested");
  return free;
}

}  // namespace annulus
