#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <new>
#include <optional>
#include <string>
#include <system_error>

#include "collectives/world/abort.h"
#include "collectives/world/world.h"
#include "kernels/base/allowed_resources.h"
#include "kernels/base/relaxed.h"
#include "kernels/base/subnormals.h"
#include "src/cli/cli.h"
#include "src/io/file_io.h"
#include "src/io/printable.h"
#include "src/io/shortened.h"
#include "src/io/standard_output.h"
#include "src/io/terminal.h"
#include "src/job/foreign_launcher.h"
#include "src/job/job_status.h"
#include "src/job/launched_rank.h"
#include "src/job/open_device.h"
#include "src/job/start_limits.h"
#include "src/job/watchdog.h"

namespace {

// How often OpenMP's threads poll for work before they sleep: some 10 us, libgomp's value if threads outnumber cores.
// The default is milliseconds, during which nothing else can run on a shared core.
constexpr const char* kSpins = "1000";

// Limits polling. libgomp reads these variables on loading, so the program restarts itself if neither is set.
void limit_spinning(char** arguments) {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr) return;
  setenv("GOMP_SPINCOUNT", kSpins, 0);
  std::error_code error;  // on failure this process continues with the default
  execv(std::filesystem::read_symlink("/proc/self/exe", error).c_str(), arguments);
}

std::string message_of(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr)
    return fmt::format(
        "not enough memory{}: use a smaller --batch (or train --accumulate), smaller images, or a smaller model",
        annulus::free_address_space() < SIZE_MAX ? " (ulimit -v limits it)" : "");
  const auto* system = dynamic_cast<const std::system_error*>(&error);
  if (system != nullptr && system->code() == std::errc::resource_unavailable_try_again)
    return "cannot start another thread: set fewer --threads or --workers, or raise the limit of processes (ulimit -u) "
           "or "
           "of memory (ulimit -v)";
  return annulus::shortened(annulus::printable_lines(error.what()));
}

void report(const std::string& problem) {
  fmt::print(stderr, "{}{}\n", annulus::emphasized(stderr, annulus::Emphasis::error, "annulus: "), problem);
  std::fflush(stderr);
}

// Ends this process with a line if an exception leaves a thread: the default is a backtrace that names no reason.
[[noreturn]] void end_by_exception() {
  try {
    if (const std::exception_ptr error = std::current_exception()) std::rethrow_exception(error);
    report("a thread ended without a reason");
  } catch (const std::exception& error) {
    report(message_of(error));
  } catch (...) {
    report("a thread ended by an unknown exception");
  }
  std::_Exit(EXIT_FAILURE);
}

// Reports a launch that would make every process a separate job. `launched`: this process's rank, if known; only rank 0
// reports.
int refuse(const annulus::ForeignLaunch& launch, int launched) {
  if (launch.rank > 0) annulus::let_first_rank_report();
  if (launched > 0) return EXIT_FAILURE;
  report((launch.rank > 0 ? fmt::format("rank {}: ", launch.rank) : "") + launch.complaint);
  return EXIT_FAILURE;
}

// Prints the error once and ends the job on every rank.
int end_job(const annulus::World& world, const std::exception& error) {
  std::signal(SIGTERM, SIG_DFL);  // so that rank 0 can end this rank
  if (!world.root()) annulus::let_first_rank_report();
  report(fmt::format("{}{}", world.root() ? "" : fmt::format("rank {}: ", world.rank()), message_of(error)));
  annulus::report_job_status(EXIT_FAILURE, 0);
  if (world.size() > 1) annulus::abort_job(EXIT_FAILURE);
  return EXIT_FAILURE;
}

int run_on_all_ranks(const annulus::Command& command, const std::optional<int>& launched) {
  annulus::require_room_to_start();
  annulus::Relaxed<int> rank(launched.value_or(-1));
  annulus::Watchdog watchdog(command.stall_seconds,
                             [&rank](const annulus::Stall& stall) { annulus::end_stalled_job(rank, stall); });
  annulus::choose_gpu(command.device);
  const auto& foreign = annulus::foreign_launch();
  const annulus::MpiSession session;
  const annulus::World world;
  rank = world.rank();
  watchdog.activity().enter(annulus::Activity::Phase::unwatched);
  const auto run = [&] {
    try {
      if (foreign && world.size() == 1 && !command.accepts_foreign_launchers)
        return refuse(*foreign, launched.value_or(0));
      return command.run(world, watchdog);
    } catch (const std::exception& error) {
      watchdog.activity().enter(annulus::Activity::Phase::ending);
      return end_job(world, error);
    }
  };
  const int status = annulus::status_after_output(run());
  if (!launched) annulus::MpiSession::set_status_after_crash(status);
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  std::set_terminate(end_by_exception);
  annulus::prepare_standard_streams();
  std::signal(SIGXFSZ, SIG_IGN);  // exceeding the file size limit (ulimit -f) makes the write fail
  annulus::flush_subnormals();    // before there are other threads, which inherit it
  limit_spinning(argv);
  const std::optional<int> launched = annulus::launched_rank();
  const bool first = launched.value_or(0) == 0;
  const annulus::Command command = annulus::parse_command_line(argc, argv, first);
  annulus::allow_many_open_files();
  try {
    const int status = command.run ? run_on_all_ranks(command, launched)
                                   : annulus::status_after_output(first ? command.run_without_mpi() : 0);
    if (first) annulus::report_job_status(status, 0);
    return status;
  } catch (const std::exception& error) {
    if (!first) annulus::let_first_rank_report();
    report((first ? "" : fmt::format("rank {}: ", *launched)) + message_of(error));
    annulus::report_job_status(EXIT_FAILURE, 0);
    return EXIT_FAILURE;
  }
}
