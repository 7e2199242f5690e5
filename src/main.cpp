#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <new>
#include <optional>
#include <thread>

#include "collectives/world/world.h"
#include "kernels/base/relaxed.h"
#include "kernels/base/subnormals.h"
#include "src/cli/cli.h"
#include "src/io/file_io.h"
#include "src/io/printable.h"
#include "src/job/launched_rank.h"
#include "src/job/watchdog.h"

namespace {

// How often OpenMP's threads look for work before they sleep: some 10 us, as libgomp has it if it knows that threads
// outnumber cores. Its default is milliseconds, in which nothing else on a core that is shared with other work can run.
constexpr const char* kSpins = "1000";

// libgomp reads these variables when it is loaded, so the program starts once more if neither is set.
void limit_spinning(char** arguments) {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr) return;
  setenv("GOMP_SPINCOUNT", kSpins, 0);
  std::error_code error;  // if it fails, this process goes on, with the default
  execv(std::filesystem::read_symlink("/proc/self/exe", error).c_str(), arguments);
}

// Most errors (a missing file) are met by all ranks at the same time: the others leave rank 0 the time to say it and to
// end them. Open MPI's mpirun may take a second for that.
constexpr std::chrono::seconds kToTheRoot(3);

// Says what went wrong, once, and ends the job on every rank.
int end_job(const annulus::World& world, const char* what) {
  std::signal(SIGTERM, SIG_DFL);  // so that rank 0 can end it
  if (!world.root()) std::this_thread::sleep_for(kToTheRoot);
  fmt::print(stderr, "annulus: {}{}\n", world.root() ? "" : fmt::format("rank {}: ", world.rank()),
             annulus::printable_lines(what));
  std::fflush(stderr);
  if (world.size() > 1) MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
  return EXIT_FAILURE;
}

}  // namespace

int main(int argc, char** argv) {
  annulus::flush_subnormals();  // before there are other threads, which inherit it
  limit_spinning(argv);
  const std::optional<int> launched = annulus::launched_rank();
  const annulus::Command command = annulus::parse_command_line(argc, argv, launched.value_or(0) == 0);
  annulus::allow_many_open_files();
  try {
    annulus::Relaxed<int> rank(launched.value_or(-1));
    annulus::Watchdog watchdog(command.stall_seconds,
                               [&rank](const annulus::Stall& stall) { annulus::end_stalled_job(rank, stall); });
    const annulus::MpiSession session;
    const annulus::World world;
    rank = world.rank();
    watchdog.activity().enter(annulus::Activity::Phase::unwatched);
    try {
      return command.run(world, watchdog);
    } catch (const std::bad_alloc&) {
      watchdog.activity().enter(annulus::Activity::Phase::ending);
      return end_job(world, "not enough memory: use a smaller --batch, smaller images, or a smaller model");
    } catch (const std::exception& error) {
      watchdog.activity().enter(annulus::Activity::Phase::ending);
      return end_job(world, error.what());
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "annulus: {}\n", annulus::printable_lines(error.what()));
    return EXIT_FAILURE;
  }
}
