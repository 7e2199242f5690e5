#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <functional>
#include <optional>

#include "src/checkpoint/checkpoint_folder.h"
#include "tests/unit/score_of.h"
#include "tests/unit/temporary_folder.h"

namespace annulus {
namespace {

namespace fs = std::filesystem;

// A checkpoint after `step` steps, with `correct` of 100 images classified correctly.
Checkpoint after_steps(std::uint64_t step, int correct) {
  Checkpoint checkpoint;
  checkpoint.model = "lenet";
  checkpoint.run.step = step;
  checkpoint.run.score = test::score_of(100, {{Measure::accuracy, correct}});
  checkpoint.parameters = {{"weight", {2}, {static_cast<float>(step), 1}, {{0, 0}}}};
  return checkpoint;
}

void write(const fs::path& run, const Checkpoint& checkpoint) {
  CheckpointFolder(run, 1).write(checkpoint, arrays_of(checkpoint));
}

// How a process ended that was to be killed.
enum class End { killed, completed, not_traced };

// Runs `work` in a process that is killed in front of its system call number `calls`, which is not made.
End kill_before_call(std::size_t calls, const std::function<void()>& work) {
  const pid_t process = fork();
  if (process == 0) {
    if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(2);
    raise(SIGSTOP);
    work();
    _exit(0);
  }
  REQUIRE(process > 0);
  int status = 0;
  // Waits until the process stops. Returns whether it has not ended.
  const auto stops = [&] { return waitpid(process, &status, 0) == process && WIFSTOPPED(status); };
  if (!stops()) return End::not_traced;
  ptrace(PTRACE_SETOPTIONS, process, nullptr, PTRACE_O_EXITKILL | PTRACE_O_TRACESYSGOOD);
  for (std::size_t stop = 0; stop <= 2 * calls; ++stop) {  // there is another stop when a call returns
    ptrace(PTRACE_SYSCALL, process, nullptr, nullptr);
    if (!stops()) return End::completed;
    if (WSTOPSIG(status) != (SIGTRAP | 0x80)) --stop;  // a signal, which is not delivered
  }
  kill(process, SIGKILL);
  CHECK_FALSE(stops());
  return End::killed;
}

// The step of the checkpoint to which a link points.
std::optional<std::uint64_t> linked_step(const fs::path& link) {
  if (!fs::exists(link)) return {};
  return read_checkpoint(link).run.step;
}

}  // namespace

TEST_CASE("a writer killed between any two system calls leaves a checkpoint to resume from", "[checkpoint_folder]") {
  const test::TemporaryFolder folder;
  const fs::path before = folder / "before", run = folder / "run";
  fs::create_directory(before);
  write(before, after_steps(10, 70));  // the best
  write(before, after_steps(20, 50));
  std::uint64_t last = 20;
  std::size_t calls = 0;
  for (;; ++calls) {
    fs::remove_all(run);
    fs::copy(before, run, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    const End end = kill_before_call(calls, [&] { write(run, after_steps(30, 80)); });
    if (end == End::not_traced) {
      WARN("processes cannot be traced here: skipped");
      return;
    }
    CAPTURE(calls);
    // Resuming finds the old checkpoint or the new one, and after a later kill never an older one.
    const auto newest = CheckpointFolder(run, 1).newest();
    REQUIRE(newest);
    CHECK(newest->damaged.empty());
    const std::uint64_t step = newest->file.header().run.step;
    CHECK((step == 20 || step == 30));
    CHECK(step >= last);
    last = step;
    CHECK(linked_step(run / "checkpoint.h5").value_or(0) >= 20);
    CHECK(linked_step(run / "best.h5").value_or(0) >= 10);
    CHECK(CheckpointFolder(run, 1).best()->value(Measure::accuracy) == Approx(step == 30 ? 0.8 : 0.7));
    // The resumed run repeats the steps, and leaves nothing unfinished.
    write(run, after_steps(30, 80));
    write(run, after_steps(40, 60));
    CHECK(CheckpointFolder(run, 1).newest()->file.header().run.step == 40);
    CHECK(linked_step(run / "checkpoint.h5") == 40);
    CHECK(linked_step(run / "best.h5") == 30);
    CHECK(std::distance(fs::directory_iterator(run), {}) == 3);
    CHECK(std::distance(fs::directory_iterator(run / "checkpoints"), {}) == 2);
    if (end == End::completed) break;
  }
  CHECK(last == 30);
  CHECK(calls > 20);
}

}  // namespace annulus
