#include "src/train/interval.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <vector>

#include "tests/unit/error_text.h"

namespace annulus {
namespace {

using Unit = Interval::Unit;

// Returns the steps of a run of two epochs of 100 samples, in steps of 30, after which the timer is due.
std::vector<std::uint64_t> due_steps(const std::string& interval, std::uint64_t time_has_come_at = 0) {
  const Timer timer(parse_interval(interval));
  std::vector<std::uint64_t> steps;
  std::uint64_t number = 0;
  for (Cursor cursor; cursor.epoch < 2;) {
    const StepPlan step = plan_step(cursor, 100, 30);
    ++number;
    if (timer.due({number - 1, number}, step, number == time_has_come_at)) steps.push_back(number);
    cursor = after(step);
  }
  return steps;
}

}  // namespace

TEST_CASE("intervals are steps, epochs, a duration, or the whole run") {
  CHECK(parse_interval("500") == Interval{Unit::steps, 500});
  CHECK(parse_interval("1step") == Interval{Unit::steps, 1});
  CHECK(parse_interval("1e3steps") == Interval{Unit::steps, 1000});
  CHECK(parse_interval("2epochs") == Interval{Unit::epochs, 2});
  CHECK(parse_interval("1epoch") == Interval{});
  CHECK(parse_interval("0.25s") == Interval{Unit::seconds, 0.25});
  CHECK(parse_interval("10min") == Interval{Unit::seconds, 600});
  CHECK(parse_interval("1.5h") == Interval{Unit::seconds, 5400});
  CHECK(parse_interval("end") == Interval{Unit::run, 1});
}

TEST_CASE("invalid intervals are refused") {
  for (const char* text :
       {"",         "0", "-1",  "0s",    "-1s",   "1.5",      "0.5epochs", "1.5steps", "nan",  "infs",
        "infinity", "s", "min", "epoch", "5 min", "5minutes", "5x",        "steps5",   "ends", "1e999"})
    CHECK_THAT(test::error_of([&] { parse_interval(text); }),
               Catch::Contains(fmt::format("'{}' is not an interval", text)));
}

TEST_CASE("a timer is due at its steps, at the ends of its epochs, or if any rank's time has come") {
  using Steps = std::vector<std::uint64_t>;
  CHECK(due_steps("3") == Steps{3, 6});
  CHECK(due_steps("1") == Steps{1, 2, 3, 4, 5, 6, 7, 8});
  CHECK(due_steps("9").empty());
  CHECK(due_steps("1epoch") == Steps{4, 8});
  CHECK(due_steps("2epochs") == Steps{8});
  CHECK(due_steps("end").empty());
  CHECK(due_steps("1h", 5) == Steps{5});  // according to one rank's clock
  CHECK(due_steps("3", 5) == Steps{3, 6});
}

TEST_CASE("a timer is due after a round in which an interval ended") {
  const Timer timer(parse_interval("10"));
  CHECK_FALSE(timer.due({0, 9}, {}, false));
  CHECK(timer.due({9, 12}, {}, false));
  CHECK_FALSE(timer.due({12, 19}, {}, false));
  CHECK(timer.due({19, 40}, {}, false));
  CHECK_FALSE(timer.due({40, 49}, {}, false));
}

TEST_CASE("a time interval is due once") {
  Timer timer(parse_interval("1h"));
  CHECK_FALSE(timer.time_has_come());
  CHECK_FALSE(Timer(parse_interval("1")).time_has_come());
  Timer short_timer(parse_interval("1e-9s"));
  while (!short_timer.time_has_come()) continue;
  short_timer.restart();
  while (!short_timer.time_has_come()) continue;
}

}  // namespace annulus
