#include <fmt/format.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <new>
#include <thread>

#include "collectives/world.h"
#include "src/cli.h"
#include "src/file_io.h"

namespace {

// Whether this is the first of the processes that a launcher started, as far as can be told before MPI_Init.
bool first_of_launch() {
  for (const char* variable : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"})
    if (const char* rank = std::getenv(variable)) return std::atoi(rank) == 0;
  return true;
}

// Most errors (a missing file) are met by all ranks at the same time: the others leave rank 0 the time to say it and to
// end them. Open MPI's mpirun may take a second for that.
constexpr std::chrono::seconds kToTheRoot(3);

// Says what went wrong, once, and ends the job on every rank.
int end_job(const annulus::World& world, const char* what) {
  std::signal(SIGTERM, SIG_DFL);  // so that rank 0 can end it
  if (!world.root()) std::this_thread::sleep_for(kToTheRoot);
  fmt::print(stderr, "annulus: {}{}\n", world.root() ? "" : fmt::format("rank {}: ", world.rank()), what);
  std::fflush(stderr);
  if (world.size() > 1) MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
  return EXIT_FAILURE;
}

}  // namespace

int main(int argc, char** argv) {
  const annulus::Command command = annulus::parse_command_line(argc, argv, first_of_launch());
  annulus::allow_many_open_files();
  try {
    const annulus::MpiSession session;
    const annulus::World world;
    try {
      return command(world);
    } catch (const std::bad_alloc&) {
      return end_job(world, "not enough memory: use a smaller --batch, smaller images, or a smaller model");
    } catch (const std::exception& error) {
      return end_job(world, error.what());
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "annulus: {}\n", error.what());
    return EXIT_FAILURE;
  }
}
