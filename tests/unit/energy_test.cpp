#include <sys/fsuid.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <thread>

#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "src/energy/energy_sources.h"
#include "src/energy/sampled_counter.h"
#include "tests/unit/error_text.h"
#include "tests/unit/temporary_folder.h"

namespace annulus {
namespace {

using Catch::Contains;

// A recorded /sys.
struct RecordedTree {
  static void write(const std::filesystem::path& file, const std::string& text) {
    create_directories(file.parent_path());
    test::write_text(file, text + '\n');
  }
  void domain(const std::string& folder, const std::string& name, std::uint64_t microjoules) const {
    const auto path = sysfs / "class/powercap" / folder;
    write(path / "name", name);
    write(path / "max_energy_range_uj", "1000000000");
    write(path / "energy_uj", std::to_string(microjoules));
  }
  void pm_counters(const std::string& text) const { write(sysfs / "cray/pm_counters/energy", text); }
  EnergyPlace place() const { return {sysfs.path(), std::nullopt}; }

  test::TemporaryFolder sysfs;
};

EnergyCounters counters_with(const std::vector<std::size_t>& sources) {
  EnergyCounters counters;
  for (std::size_t i = 0; i < kEnergySources.size(); ++i) counters.reasons[i] = std::string(kEnergySources[i].name);
  for (const std::size_t i : sources) counters.counters[i] = [] { return EnergyReading{}; };
  return counters;
}

// A counter of `watts`, which changes every `period` seconds. `stamped`: it knows when.
EnergyCounter steady(double watts, double period, bool stamped) {
  return [=, begun = now_seconds()]() -> EnergyReading {
    const double now = now_seconds() - begun, changed = period * std::floor(now / period);
    return {watts * changed, stamped ? changed : now};
  };
}

void sleep_for(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

}  // namespace

TEST_CASE("RAPL's packages and memory are added up, and nothing twice", "[energy]") {
  const RecordedTree tree;
  const auto write = [&](std::uint64_t seconds) {  // 100 and 50 W, and 10 W for memory
    tree.domain("intel-rapl:0", "package-0", 999'000'000 + 100'000'000 * seconds);
    tree.domain("intel-rapl:1", "package-1", 50'000'000 * seconds);
    tree.domain("intel-rapl:0:0", "core", 70'000'000 * seconds);
    tree.domain("intel-rapl:0:1", "dram", 10'000'000 * seconds);
    tree.domain("intel-rapl:2", "psys", 300'000'000 * seconds);
    tree.domain("intel-rapl-mmio:0", "package-0", 100'000'000 * seconds);
  };
  write(0);
  const EnergyCounter counter = open_rapl(tree.place());
  CHECK(counter().joules == 0);
  CHECK(counter().joules == 0);
  write(0);
  tree.domain("intel-rapl:0", "package-0", 99'000'000);  // it restarted after 1000 J
  CHECK(counter().joules == 100);
  tree.domain("intel-rapl:1", "package-1", 50'000'000);
  tree.domain("intel-rapl:0:1", "dram", 10'000'000);
  CHECK(counter().joules == 160);
  tree.domain("intel-rapl:0", "package-0", 98'000'000);
  CHECK(counter().joules == 1159);
}

TEST_CASE("RAPL's counters that cannot be read are named", "[energy]") {
  const RecordedTree tree;
  CHECK(test::error_of([&] { open_rapl(tree.place()); }) ==
        (tree.sysfs / "class/powercap").string() + ": no RAPL counters");
  tree.domain("intel-rapl:0", "psys", 1);
  CHECK_THAT(test::error_of([&] { open_rapl(tree.place()); }), Contains("no RAPL counters"));
  tree.domain("intel-rapl:1", "package-0", 1);
  const auto file = tree.sysfs / "class/powercap/intel-rapl:1/energy_uj";
  std::ofstream(file) << "many\n";
  CHECK(test::error_of([&] { open_rapl(tree.place()); }) == file.string() + ": 'many' is not a number");
  // As Linux has it, for a user who is not root.
  using std::filesystem::perms;
  permissions(tree.sysfs.path(), perms::owner_all | perms::group_exec | perms::others_exec);
  permissions(file, perms::owner_read);
  setfsuid(65534);
  const std::string denied = test::error_of([&] { open_rapl(tree.place()); });
  setfsuid(geteuid());
  CHECK(denied == file.string() + ": Permission denied (readable by root only)");
}

TEST_CASE("Cray's counters have joules, and often the time", "[energy]") {
  const RecordedTree tree;
  tree.pm_counters("25432 J 1475578513543190 us");
  const EnergyCounter counter = open_pm_counters(tree.place());
  CHECK(counter().joules == 25432);
  CHECK(counter().seconds == 1475578513.543190);
  tree.pm_counters("25500 J");
  const double before = now_seconds();
  const EnergyReading reading = counter();
  CHECK(reading.joules == 25500);
  CHECK((before <= reading.seconds && reading.seconds <= now_seconds()));
  tree.pm_counters("175 W");
  CHECK_THAT(test::error_of([&] { counter(); }), Contains("pm_counters/energy: '175 W' is not a number of joules"));
}

TEST_CASE("sources are chosen that count the processors in use once", "[energy]") {
  constexpr std::size_t pm = 0, nvml = 1, rapl = 2;
  struct Case {
    std::vector<std::size_t> known;
    bool on_gpu;
    std::vector<std::size_t> chosen;
    std::string unknown;
  };
  const std::vector<Case> cases{{{pm, nvml, rapl}, true, {pm}, ""},
                                {{pm, rapl}, false, {pm}, ""},
                                {{nvml, rapl}, true, {nvml, rapl}, ""},
                                {{nvml}, true, {nvml}, ""},
                                {{rapl}, false, {rapl}, ""},
                                {{rapl}, true, {rapl}, "NVML"},
                                {{}, false, {}, "RAPL"},
                                {{}, true, {}, "NVML"}};
  for (const Case& one : cases) {
    const EnergyChoice choice = choose_energy_sources(counters_with(one.known), one.on_gpu);
    CHECK(choice.sources == one.chosen);
    CHECK(choice.unknown == one.unknown);
  }
  const EnergyChoice both = choose_energy_sources(counters_with({nvml, rapl}), true);
  CHECK(join_sources(both, &EnergySource::name) == "NVML and RAPL");
  CHECK(join_sources(both, &EnergySource::of) == "the GPUs and the processors");
}

TEST_CASE("a counter that changes rarely measures the power between its changes", "[energy]") {
  SampledCounter stamped(steady(400, 0.1, true), 0.01), unstamped(steady(400, 0.1, false), 0.01);
  for (SampledCounter* counter : {&stamped, &unstamped}) counter->begin();
  sleep_for(1.07);
  for (SampledCounter* counter : {&stamped, &unstamped}) counter->end();
  const SampledCounter::Totals exact = stamped.totals(), near = unstamped.totals();
  CHECK(exact.unknown.empty());
  CHECK(exact.watts == Approx(400));
  CHECK(near.watts == Approx(400).epsilon(0.05));
  CHECK(near.joules >= 0.9 * 400);
}

TEST_CASE("power is that of the intervals, and energy that of all time", "[energy]") {
  std::atomic<double> watts = 100;
  const auto counter = [&watts, joules = 0.0, last = now_seconds()]() mutable -> EnergyReading {
    const double now = now_seconds();
    joules += watts * (now - last);
    return {joules, last = now};
  };
  SampledCounter sampled(counter, 0.001);
  for (int turn = 0; turn < 2; ++turn) {
    sleep_for(0.2);
    sampled.begin();
    watts = 400;
    sleep_for(0.2);
    watts = 100;
    sampled.end();
  }
  const SampledCounter::Totals found = sampled.totals();
  CHECK(found.unknown.empty());
  CHECK(found.watts == Approx(400).epsilon(0.05));
  CHECK(found.joules > found.watts * 0.38);
}

TEST_CASE("short turns with hardly a pause are one interval", "[energy]") {
  SampledCounter counter(steady(400, 0.1, true), 0.01);
  const double begun = now_seconds();
  while (now_seconds() < begun + 0.5) {
    counter.begin();
    sleep_for(0.03);
    counter.end();
  }
  CHECK(counter.totals().watts == Approx(400));
}

TEST_CASE("the energy is unknown if it cannot be measured", "[energy]") {
  SampledCounter slow(steady(400, 0.1, true), 0.01);
  slow.begin();
  sleep_for(0.15);
  slow.end();
  CHECK(slow.totals().unknown == "steps of 0.00 s are too short for the counter");

  std::atomic<bool> fails = false;
  SampledCounter broken(
      [&fails]() -> EnergyReading {
        if (fails) throw Error("gone");
        return {now_seconds(), now_seconds()};
      },
      0.01);
  broken.begin();
  sleep_for(0.3);
  broken.end();
  CHECK(broken.totals().unknown.empty());
  fails = true;
  CHECK(broken.totals().unknown == "gone");
}

}  // namespace annulus
