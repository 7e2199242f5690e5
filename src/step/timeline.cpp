#include "src/step/timeline.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "src/io/atomic_file.h"
#include "src/io/output_file.h"
#include "src/job/machine.h"

namespace annulus {
namespace {

constexpr std::size_t kSpansOfRun = 10'000;     // capacity of a lane
constexpr std::size_t kSpansOfSteps = 200'000;  // 11 MB

// The name of a "process" or of a "thread" in it, and its position among the others.
std::string title(const std::string& kind, int rank, int lane, const std::string& name, int place) {
  const auto metadata = [&](const std::string& what, nlohmann::json arguments) {
    return nlohmann::json{
        {"name", kind + what}, {"ph", "M"}, {"pid", rank}, {"tid", lane}, {"args", std::move(arguments)}}
        .dump();
  };
  return metadata("_name", {{"name", name}}) + ",\n" + metadata("_sort_index", {{"sort_index", place}});
}

// `origin`: the moment that becomes 0, on this rank's clock.
std::string event(const TraceLane::Span& span, int rank, int lane, double origin) {
  const std::string name =
      span.number == TraceLane::kNone ? std::string(span.name) : fmt::format("{} {}", span.name, span.number);
  const std::string step = span.step == TraceLane::kNone ? "" : fmt::format("\"step\":{}", span.step);
  return fmt::format(R"({{"name":{},"ph":"X","ts":{:.3f},"dur":{:.3f},"pid":{},"tid":{},"args":{{{}}}}})",
                     nlohmann::json(name).dump(), 1e6 * (span.begin - origin), 1e6 * (span.end - span.begin), rank,
                     lane, step);
}

std::string events(const TraceLane& lane, const std::string& name, int rank, int number, double origin) {
  const std::string dropped =
      lane.dropped() > 0 ? fmt::format(" ({} more spans did not fit)", lane.dropped()) : std::string();
  std::string text = title("thread", rank, number, name + dropped, number);
  for (const TraceLane::Span& span : lane.spans()) text += ",\n" + event(span, rank, number, origin);
  return text;
}

void write_array(const std::filesystem::path& file, const std::vector<std::string>& elements) {
  const std::string text =
      fmt::format("[\n{}{}{}\n]\n", kTimelineMark, elements.empty() ? "" : ",\n", fmt::join(elements, ",\n"));
  write_atomically(file, std::as_bytes(std::span(text)));
}

}  // namespace

Timeline::Timeline(const TimelineOptions& options, double clock_offset)
    : options_(options),
      clock_offset_(clock_offset),
      begun_(now_seconds()),
      run_(on() ? kSpansOfRun : 0),
      step_(on() ? kSpansOfSteps : 0),
      all_reduce_(on() ? kSpansOfSteps : 0) {
  run_.record(on());
}

void Timeline::claim(const World& world) const {
  if (on() && world.root()) write_array(options_.file, {});
}

void Timeline::begin_step(std::uint64_t number) {
  const bool now = on() && steps_ >= options_.first && steps_ < options_.first + options_.steps;
  ++steps_;
  for (TraceLane* lane : {&step_, &all_reduce_}) lane->record(now, static_cast<std::int64_t>(number));
}

std::string Timeline::write(const World& world) const {
  if (!on()) return "";
  double origin = begun_ + clock_offset_;
  world.minimum(std::span(&origin, 1));
  origin -= clock_offset_;

  const int rank = world.rank();
  std::string own = title("process", rank, 0, fmt::format("rank {} on {}", rank, host_name()), rank);
  own += ",\n" + events(run_, "run", rank, 0, origin);
  own += ",\n" + events(step_, "step", rank, 1, origin);
  own += ",\n" + events(all_reduce_, "all-reduce", rank, 2, origin);
  const std::vector<std::string> all = world.gather_texts(own);

  std::array<std::int64_t, 1> dropped{
      static_cast<std::int64_t>(run_.dropped() + step_.dropped() + all_reduce_.dropped())};
  world.sum(dropped);
  if (world.root()) write_array(options_.file, all);
  const std::size_t begun = std::min(steps_, options_.first + options_.steps);
  std::string text = fmt::format("timeline of {} steps in {}: open it in https://ui.perfetto.dev",
                                 begun - std::min(begun, options_.first), options_.file.string());
  if (dropped[0] > 0) text += fmt::format("; {} spans did not fit", dropped[0]);
  return text;
}

}  // namespace annulus
