#include "src/job/near_processors.h"

#include <sched.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <thread>

#include "tests/unit/temporary_folder.h"

namespace annulus {
using namespace annulus::test;

namespace {

std::vector<int> allowed_processors() {
  cpu_set_t allowed;
  REQUIRE(sched_getaffinity(0, sizeof allowed, &allowed) == 0);
  std::vector<int> processors;
  for (int processor = 0; processor < CPU_SETSIZE; ++processor)
    if (CPU_ISSET(static_cast<std::size_t>(processor), &allowed)) processors.push_back(processor);
  return processors;
}

// Binds a thread of its own, and returns the processors that it may use afterwards.
std::vector<int> allowed_after(const std::vector<int>& processors) {
  std::vector<int> allowed;
  std::jthread([&] {
    bind_to(processors);
    allowed = allowed_processors();
  }).join();
  return allowed;
}

}  // namespace

TEST_CASE("the processors near a GPU are those of Linux's list") {
  const TemporaryFolder sysfs;
  const auto device = sysfs.path() / "bus/pci/devices/0000:1a:00.0";
  create_directories(device);
  const auto near = [&](const std::string& list) {
    std::ofstream(device / "local_cpulist") << list << '\n';
    return processors_near("0000:1A:00.0", sysfs.path());
  };
  CHECK(near("0-3,8-9") == std::vector{0, 1, 2, 3, 8, 9});
  CHECK(near("5") == std::vector{5});
  CHECK(near("1,3-4,7") == std::vector{1, 3, 4, 7});
  CHECK(near("").empty());
  CHECK(processors_near("0000:1b:00.0", sysfs.path()).empty());
}

TEST_CASE("a thread is bound to processors if it may use all of them") {
  const std::vector<int> all = allowed_processors();
  CHECK(allowed_after({all.back()}) == std::vector{all.back()});
  CHECK(allowed_after(all) == all);
  CHECK(allowed_after({all.front(), CPU_SETSIZE - 1}) == all);
  CHECK(allowed_after({}) == all);
}

}  // namespace annulus
