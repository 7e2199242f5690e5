#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>

#include "src/energy/energy_counter.h"

namespace annulus {

// Reads a counter on a thread, and measures the power within intervals.
//
//   interval          |-----------------------|
//   the counter changes    x    x    x    x    x    x
//   counted                |--------------|
//
// Counters change as rarely as every 100 ms, so values at an interval's ends may be as old. The power is that between
// the first and the last change that was seen within an interval. RAPL's counters restart after minutes, which is why
// the thread reads them between intervals as well, every second.
class SampledCounter {
 public:
  // Power is measured over this number of readings at least; changes are seen up to a reading late.
  static constexpr double kFewestReadings = 20;

  // `period_seconds`: between readings within an interval.
  SampledCounter(EnergyCounter read, double period_seconds);

  void begin();  // an interval
  void end();

  struct Totals {
    double watts = 0;     // mean within the intervals
    double joules = 0;    // since the construction
    std::string unknown;  // why the values are not known; else empty
  };
  Totals totals();

 private:
  void work(const std::stop_token& stop);

  // REQUIRE: mutex_ is held.
  void look();
  void count();

  const EnergyCounter read_;
  const double period_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  bool inside_ = false;                     // an interval
  double begun_ = 0, ended_ = 0;            // the current or last interval, in now_seconds()
  EnergyReading first_, last_;              // last change
  std::optional<EnergyReading> from_, to_;  // first and last change within the interval
  double joules_ = 0, seconds_ = 0;         // counted within earlier intervals
  std::string problem_;
  std::jthread thread_;  // last: stops before the members that it uses are destroyed
};

}  // namespace annulus
