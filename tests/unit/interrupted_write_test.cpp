#include <signal.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cerrno>
#include <exception>
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

// How a traced process ended: `unharmed` if it succeeded although a call failed, `completed` if it made no such call.
enum class End { killed, failed, unharmed, completed, not_traced };

// A process that works, and stops in front of a system call.
class TracedProcess {
 public:
  explicit TracedProcess(const std::function<void()>& work) : process_(fork()) {
    if (process_ == 0) run(work);
    REQUIRE(process_ > 0);
    traced_ = stops();
    ptrace(PTRACE_SETOPTIONS, process_, nullptr, PTRACE_O_EXITKILL | PTRACE_O_TRACESYSGOOD);
  }

  bool traced() const { return traced_; }
  // Runs up to the next begin or end of a system call. Returns false if the process has ended.
  bool step() {
    for (int signal = 0;;) {
      ptrace(PTRACE_SYSCALL, process_, nullptr, signal);
      if (!stops()) return false;
      if (WSTOPSIG(status_) == (SIGTRAP | 0x80)) return true;
      signal = WSTOPSIG(status_) == SIGSTOP ? 0 : WSTOPSIG(status_);
    }
  }
  void kill() {
    ::kill(process_, SIGKILL);
    while (stops()) continue;
  }
  // The call at whose begin it is returns this error, without being made. Runs to the end.
  void fail_call(int error) {
    user_regs_struct registers = this->registers();
    registers.orig_rax = ~0ull;
    ptrace(PTRACE_SETREGS, process_, nullptr, &registers);
    if (!step()) return;
    registers.rax = static_cast<unsigned long long>(-static_cast<long long>(error));
    ptrace(PTRACE_SETREGS, process_, nullptr, &registers);
    while (step()) continue;
  }
  // The call at whose begin or end it is.
  long call() const { return static_cast<long>(registers().orig_rax); }
  bool succeeded() const { return WIFEXITED(status_) && WEXITSTATUS(status_) == 0; }

 private:
  user_regs_struct registers() const {
    user_regs_struct registers{};
    ptrace(PTRACE_GETREGS, process_, nullptr, &registers);
    return registers;
  }
  [[noreturn]] static void run(const std::function<void()>& work) {
    if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(2);
    raise(SIGSTOP);
    try {
      work();
    } catch (const std::exception&) {
      _exit(1);
    }
    _exit(0);
  }
  bool stops() { return waitpid(process_, &status_, 0) == process_ && WIFSTOPPED(status_); }

  const pid_t process_;
  int status_ = 0;
  bool traced_ = false;
};

// Calls that change files, or that a full or broken disk lets fail. Only these are counted: how often a process manages
// its memory differs from run to run.
constexpr std::array kFileCalls{SYS_open,      SYS_openat,    SYS_write,     SYS_pwrite64, SYS_fsync,
                                SYS_ftruncate, SYS_fallocate, SYS_rename,    SYS_symlink,  SYS_mkdir,
                                SYS_unlink,    SYS_unlinkat,  SYS_getdents64};

// What happens instead of a system call: an error, or the process is killed.
constexpr int kKilled = 0;

// Runs `work` in a process that gets no further than its file call number `calls`, or whose call fails.
End interrupt_before_call(std::size_t calls, int error, const std::function<void()>& work) {
  TracedProcess process(work);
  if (!process.traced()) return End::not_traced;
  for (std::size_t begun = 0;;) {
    if (!process.step()) return End::completed;  // at the begin of a call
    if (std::ranges::find(kFileCalls, process.call()) != kFileCalls.end() && begun++ == calls) break;
    if (!process.step()) return End::completed;  // at its end
  }
  if (error == kKilled) {
    process.kill();
    return End::killed;
  }
  process.fail_call(error);
  return process.succeeded() ? End::unharmed : End::failed;
}

// The step of the checkpoint to which a link points.
std::optional<std::uint64_t> linked_step(const fs::path& link) {
  if (!fs::exists(link)) return {};
  return read_checkpoint(link).run.step;
}

}  // namespace

TEST_CASE("a writer killed between any two system calls, or whose call fails, leaves a checkpoint to resume from",
          "[checkpoint_folder]") {
  const int error = GENERATE(as<int>(), kKilled, EIO);  // or whose system call fails
  const test::TemporaryFolder folder;
  const fs::path before = folder / "before", run = folder / "run";
  fs::create_directory(before);
  write(before, after_steps(10, 70));  // the best
  write(before, after_steps(20, 50));
  std::uint64_t last = 20;
  std::size_t calls = 0, failures = 0;
  for (;; ++calls) {
    fs::remove_all(run);
    fs::copy(before, run, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    const End end = interrupt_before_call(calls, error, [&] { write(run, after_steps(30, 80)); });
    if (end == End::not_traced) {
      WARN("processes cannot be traced here: skipped");
      return;
    }
    CAPTURE(error, calls);
    failures += end == End::failed ? 1 : 0;
    // Resuming finds the old checkpoint or the new one, and after a later kill never an older one.
    const auto newest = CheckpointFolder(run, 1).newest();
    REQUIRE(newest);
    CHECK(newest->damaged.empty());
    const std::uint64_t step = newest->file.header().run.step;
    CHECK((step == 20 || step == 30));
    if (end == End::completed || end == End::unharmed) CHECK(step == 30);  // a failure is never hidden
    if (error == kKilled) CHECK(step >= last);
    last = step;
    CHECK(linked_step(run / "checkpoint.h5").value_or(0) >= 20);
    CHECK(linked_step(run / "best.h5").value_or(0) >= 10);
    CHECK(CheckpointFolder(run, 1).best()->value(Measure::accuracy) == Approx(step == 30 ? 0.8 : 0.7));
    // The resumed run leaves nothing unfinished.
    write(run, after_steps(40, 60));
    CHECK(CheckpointFolder(run, 1).newest()->file.header().run.step == 40);
    CHECK(linked_step(run / "checkpoint.h5") == 40);
    CHECK(linked_step(run / "best.h5") == (step == 30 ? 30 : 10));
    CHECK(std::distance(fs::directory_iterator(run), {}) == 3);
    CHECK(std::distance(fs::directory_iterator(run / "checkpoints"), {}) == 2);
    if (end == End::completed) break;
  }
  CHECK(last == 30);
  CHECK(calls > 20);
  if (error != kKilled) CHECK(failures > 10);
}

}  // namespace annulus
