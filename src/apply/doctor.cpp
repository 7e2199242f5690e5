#include "src/apply/doctor.h"

#include <fmt/format.h>
#include <string>
#include <vector>

#include "collectives/all_reduce.h"
#include "kernels/base/allowed_resources.h"
#include "kernels/base/error.h"
#include "kernels/base/subnormals.h"
#include "kernels/cuda/make_cuda_device.h"
#include "src/energy/energy_sources.h"
#include "src/io/bytes.h"
#include "src/io/hdf5.h"
#include "src/io/terminal.h"
#include "src/io/version.h"
#include "src/job/foreign_launcher.h"
#include "src/job/gpu_use.h"
#include "src/job/instruction_sets.h"
#include "src/job/machine.h"
#include "src/job/memory_share.h"
#include "src/job/open_device.h"
#include "src/job/threads.h"
#include "src/step/strategies.h"

namespace annulus {
namespace {

void line(std::string_view what, const std::string& text) {
  fmt::print("  {:<14}{}\n", what, text);
}

// Prints how training treats subnormal numbers.
void print_subnormals() {
  std::string text = "flushed to zero in all threads";
  try {
    expect_flushed_subnormals();
  } catch (const Error& error) {
    text = warning_mark() + error.what();
  }
  line("subnormals", text);
}

void print_jpeg_decoder() try {
  make_jpeg_decoder(0, 3);
  line("jpeg decoder", "yes: the GPU's, through nvJPEG");
} catch (const Error& error) {
  line("jpeg decoder", std::string("no: ") + error.what());
}

void print_gpus() {
  if (const std::string why = why_no_gpu(); !why.empty()) return line("cuda", "no: " + why);
  for (int gpu = 0; gpu < gpus_here(); ++gpu) line(gpu == 0 ? "cuda" : "", "yes: " + gpu_name(gpu));
  print_jpeg_decoder();
}

void print_gpu_use(const Device& device) {
  line("gpu memory", fmt::format("{} free for each rank on it, {} in use", format_bytes(device.info().free_bytes),
                                 format_bytes(gpu_memory().in_use)));
  line("deterministic", "yes, unless --deterministic off lets --tune choose sums that differ from run to run");
}

// Prints the counters of the energy on rank 0's machine.
void print_energy(const World& world, bool on_gpu) {
  const EnergyPlace place = energy_place(on_gpu ? std::optional(gpu_of(world)) : std::nullopt);
  const EnergyChoice choice = choose_energy_sources(open_energy_counters(place), on_gpu);
  line("energy", choice.unknown.empty() ? fmt::format("of {}, counted by {}", join_sources(choice, &EnergySource::of),
                                                      join_sources(choice, &EnergySource::name))
                                        : "unknown: " + choice.unknown);
}

// Prints the usable all-reduces, and why others are unavailable. Making an all-reduce is collective.
void try_all_reduces(const World& world, Device& device) {
  if (world.size() == 1) {
    line("all-reduce", "not needed with one rank; try mpirun -np 2 annulus doctor");
    return;
  }
  std::vector<std::string> names{"auto", "shm", "hierarchical", "ring", "message-ring", "doubling", "mpi"};
  if (!device.info().shares_host_memory) names.insert(names.end(), {"direct", "nccl"});
  for (const std::string& name : names) {
    std::string text;
    try {
      text = "yes: " + make_all_reduce(name, world, device)->info().description;
    } catch (const Error& error) {
      text = std::string("no: ") + error.what();
    }
    if (world.root()) line(name, text);
  }
}

}  // namespace

void doctor(const World& world) {
  const int sharing = share_memory_of_node(world);
  const Threads chosen = choose_threads(world, 0);
  const ThreadReport threads = report_threads(world, chosen);
  if (world.root()) {
    fmt::print("annulus {}\n", version());
    line("compiler", __VERSION__);
    const std::string mpi = mpi_library();
    line("MPI", mpi.substr(0, mpi.find(',')));
    line("HDF5", fmt::format("{}{}", hdf5::version(), hdf5::thread_safe() ? ", thread-safe" : ", not thread-safe"));
    fmt::print("this machine\n");
    line("host", fmt::format("{}, {}", host_name(), processor_name()));
    line("world",
         fmt::format("{} rank{}, {} on this node", world.size(), world.size() == 1 ? "" : "s", world.local_size()));
    line("memory", fmt::format("{} ({}){}", format_bytes(allowed_memory().bytes), allowed_memory().source,
                               sharing > 1 ? fmt::format(", shared by {} ranks", sharing) : ""));
    line("threads", threads.text);
    if (!threads.warning.empty()) line("", warning_mark() + threads.warning);
    if (world.size() == 1 && foreign_launch()) line("launcher", warning_mark() + foreign_launch()->complaint);
    if (const std::string unused = unused_tasks(world.size()); !unused.empty()) line("", warning_mark() + unused);
  }
  agree_on_instruction_set(world, "auto");  // before the next line uses oneDNN; open_device() reports differences
  if (world.root()) {
    fmt::print("usable here\n");
    line("cpu", "yes: " + make_device("cpu", chosen.count)->info().description);
    print_subnormals();
    print_gpus();
  }
  const auto device = open_device(world, {});
  const std::string warning = device_warning(world, *device);
  if (world.root() && !warning.empty()) line("", warning_mark() + warning);
  const bool on_gpu = !device->info().shares_host_memory;
  if (world.root() && on_gpu) print_gpu_use(*device);
  if (world.root()) print_energy(world, on_gpu);
  try_all_reduces(world, *device);
  if (!world.root()) return;
  fmt::print("when to use a strategy (train --strategy)\n");
  for (const StrategyUse& strategy : strategy_uses()) line(strategy.name, strategy.when);
}

}  // namespace annulus
