#include "src/import/run_jobs.h"

#include <fmt/format.h>

#include <array>
#include <exception>

#include "kernels/base/error.h"
#include "src/io/progress.h"
#include "src/job/signals.h"

namespace annulus {
namespace {

bool any_rank(const World& world, bool flag) {
  std::array<std::int64_t, 1> ranks{flag};
  world.sum(ranks);
  return ranks[0] > 0;
}

}  // namespace

bool run_jobs(const World& world, const std::string& what, const std::string& samples,
              const std::vector<std::size_t>& pieces, std::size_t whole,
              const std::function<void(std::size_t piece, const Report& report)>& work) {
  Meter meter(world.root(), Meter::Style::log);
  const std::size_t before = whole - pieces.size();
  meter.begin(static_cast<double>(before) / static_cast<double>(whole));
  WorkQueue queue(world, pieces, [&](const WorkQueue::Totals& done) {
    if (!meter.due()) return;
    meter.show(what, static_cast<double>(before + done.pieces) / static_cast<double>(whole),
               fmt::format("{:.0f} {}/s  {:.1f} MB/s", static_cast<double>(done.images) / meter.seconds(), samples,
                           static_cast<double>(done.bytes) / 1e6 / meter.seconds()));
  });
  const auto report = [&queue](std::size_t images, std::size_t bytes) {
    return queue.report(images, bytes) && !stop_requested();
  };
  std::string failure;
  try {
    for (auto piece = queue.next(); piece && !stop_requested(); piece = queue.next()) work(*piece, report);
  } catch (const std::exception& error) {
    failure = error.what();
  }
  queue.finish(!failure.empty() || stop_requested());
  meter.clear();
  world.all_or_none([&] {
    if (!failure.empty()) fail("{}", failure);
  });
  return !any_rank(world, stop_requested());
}

}  // namespace annulus
