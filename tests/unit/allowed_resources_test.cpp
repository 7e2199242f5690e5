#include "kernels/base/allowed_resources.h"

#include <sys/resource.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/unit/temporary_folder.h"

namespace annulus {
namespace {

using test::TemporaryFolder;

// A root folder with the files of Linux that describe a process's control groups.
class Machine {
 public:
  Machine(const std::string& mountinfo, const std::string& cgroup) {
    write("proc/self/mountinfo", "24 27 0:6 / /dev rw - devtmpfs devtmpfs rw\n" + mountinfo);
    write("proc/self/cgroup", cgroup);
  }

  Machine& write(const std::string& file, const std::string& text) {
    const std::filesystem::path path = folder_.path() / file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
    return *this;
  }

  AllowedMemory memory() const { return find_allowed_memory(folder_.path()); }
  AllowedProcessors processors() const { return find_allowed_processors(folder_.path()); }

 private:
  TemporaryFolder folder_;
};

const std::string kVersion2 = "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
const std::string kVersion1 =
    "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
    "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";

}  // namespace

TEST_CASE("without control groups a process may use this machine") {
  const auto everything =
      static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  for (const Machine& machine : {Machine("", ""), Machine(kVersion2, "0::/\n")}) {
    CHECK(machine.memory().bytes == everything);
    CHECK(machine.memory().source == "this machine");
    CHECK(machine.memory().group == 0);
    CHECK(machine.processors().count == sysconf(_SC_NPROCESSORS_ONLN));
  }
}

TEST_CASE("the least limit of version 2, up to the top, holds") {
  Machine machine(kVersion2, "0::/slurm/job_7/step_0\n");
  machine.write("sys/fs/cgroup/slurm/job_7/step_0/memory.max", "max\n")
      .write("sys/fs/cgroup/slurm/job_7/memory.max", "734003200\n")
      .write("sys/fs/cgroup/slurm/memory.max", "1073741824\n")
      .write("sys/fs/cgroup/slurm/job_7/step_0/cpu.max", "max 100000\n")
      .write("sys/fs/cgroup/slurm/cpu.max", "100000 100000\n");
  CHECK(machine.memory().bytes == 734003200);
  CHECK(machine.memory().source == "control group /slurm/job_7 (memory.max)");
  CHECK(machine.memory().shared);
  CHECK(machine.memory().group != 0);
  CHECK(machine.processors().count == 1);
  CHECK(machine.processors().source == "control group /slurm (cpu.max)");
}

TEST_CASE("limits of version 1") {
  Machine machine(kVersion1, "4:memory:/docker/a\n1:cpu,cpuacct:/docker/a\n0::/\n");
  machine.write("sys/fs/cgroup/memory/docker/a/memory.limit_in_bytes", "734003200\n")
      .write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
      .write("sys/fs/cgroup/cpu/docker/a/cpu.cfs_quota_us", "150000\n")
      .write("sys/fs/cgroup/cpu/docker/a/cpu.cfs_period_us", "100000\n")
      .write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n")
      .write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  CHECK(machine.memory().bytes == 734003200);
  CHECK(machine.memory().source == "control group /docker/a (memory.limit_in_bytes)");
  if (sysconf(_SC_NPROCESSORS_ONLN) < 2) return;
  CHECK(machine.processors().count == 1);  // of 1.5
  CHECK(machine.processors().source == "control group /docker/a (cpu.cfs_quota_us)");
}

TEST_CASE("a quota below one processor is one") {
  Machine machine(kVersion2, "0::/a\n");
  CHECK(machine.write("sys/fs/cgroup/a/cpu.max", "20000 100000\n").processors().count == 1);
}

TEST_CASE("in a container the group may be mounted at the top, under its name outside or its own") {
  const std::string mounted = "35 31 0:32 /docker/a /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
  for (const char* group : {"4:memory:/docker/a\n", "4:memory:/\n", "4:memory:/../b\n"}) {
    Machine machine(mounted, group);
    machine.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "1048576\n");
    CHECK(machine.memory().bytes == 1048576);
  }
  Machine inner(mounted, "4:memory:/docker/a/inner\n");
  inner.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "1048576\n")
      .write("sys/fs/cgroup/memory/inner/memory.limit_in_bytes", "4096\n");
  CHECK(inner.memory().bytes == 4096);
}

TEST_CASE("files that are not understood are no limits") {
  Machine machine(kVersion2, "0::/a\nnonsense\n");
  machine.write("sys/fs/cgroup/a/memory.max", "").write("sys/fs/cgroup/a/cpu.max", "one two\n");
  CHECK(machine.memory().source == "this machine");
  CHECK(machine.processors().source == "this machine");
}

#ifndef __SANITIZE_ADDRESS__  // which needs more
TEST_CASE("the limit of a process's address space is its own") {
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_AS, &before) == 0);
  const rlimit limit{std::size_t{1} << 30, before.rlim_max};
  const Machine machine("", "");
  REQUIRE(setrlimit(RLIMIT_AS, &limit) == 0);
  const AllowedMemory memory = machine.memory();
  REQUIRE(setrlimit(RLIMIT_AS, &before) == 0);
  CHECK(memory.bytes == std::size_t{1} << 30);
  CHECK(memory.source == "ulimit -v");
  CHECK_FALSE(memory.shared);
}
#endif

}  // namespace annulus
