#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "kernels/base/clock.h"
#include "kernels/device.h"

namespace annulus::cuda {

// The time that a device may spend on measuring all libraries' plans, and the lines about it.
class TuningBudget {
 public:
  static constexpr double kSeconds = 30;

  explicit TuningBudget(const Tuning& tuning, double seconds = kSeconds)
      : file_(tuning.file), report_(tuning.report), limit_(seconds) {}

  // Counts the time until it is destroyed. Only the outermost one counts.
  class Spending {
   public:
    explicit Spending(TuningBudget& budget) : budget_(budget) {
      if (budget_.depth_++ == 0) budget_.begun_ = now_seconds();
    }
    ~Spending() {
      if (--budget_.depth_ == 0) budget_.seconds_ += now_seconds() - budget_.begun_;
    }
    Spending(const Spending&) = delete;
    Spending& operator=(const Spending&) = delete;

   private:
    TuningBudget& budget_;
  };

  double seconds() const { return seconds_ + (depth_ > 0 ? now_seconds() - begun_ : 0); }
  bool spent() const { return seconds() >= limit_; }

  // Reports progress now and then. To be called before a problem's plans are measured.
  void begin_problem();
  // Reports once that the time is over. To be called when a problem's plans are not measured for that reason.
  void leave_out();
  // Reports once that the file has choices without measurements, from a run whose time was over.
  void meet_unmeasured();

 private:
  void report_once(const std::string& line);

  const std::string file_;
  const std::function<void(const std::string&)> report_;
  const double limit_;
  double seconds_ = 0, begun_ = 0;  // measured for so long, and since when
  int depth_ = 0;                   // nested Spendings
  std::size_t problems_ = 0;        // whose plans were measured
  double reported_ = 0;             // seconds() at the last report
  bool said_ = false;               // that something is not measured
};

}  // namespace annulus::cuda
