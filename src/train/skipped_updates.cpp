#include "src/train/skipped_updates.h"

#include <algorithm>
#include <vector>

#include "kernels/base/error.h"

namespace annulus {
namespace {

constexpr std::uint64_t kFinite = UINT64_MAX;

}  // namespace

bool SkippedUpdates::accept(std::uint64_t step, const Parameter* not_finite) {
  const std::vector<std::uint64_t> found = world_.gather(not_finite != nullptr ? not_finite->number : kFinite);
  const auto is_bad = [](std::uint64_t number) { return number != kFinite; };
  const auto first = std::ranges::find_if(found, is_bad);
  if (first == found.end()) {
    in_a_row_ = 0;
    return true;
  }
  const auto others = std::count_if(first + 1, found.end(), is_bad);
  const auto parameter = std::ranges::find(parameters_.all(), *first, &Parameter::number);
  const std::string where =
      fmt::format("the gradient of {} is not finite on rank {}{}", parameter->name,
                  world_.rank_in_job(static_cast<int>(first - found.begin())),
                  others == 0 ? "" : fmt::format(", nor gradients on {} other rank{}", others, others == 1 ? "" : "s"));
  if (++in_a_row_ > most_)
    fail("{}, after {} step{} without an update for this reason (--skip-not-finite)", where, most_,
         most_ == 1 ? "" : "s");
  if (world_.root())
    report_(fmt::format("step {}: {}: no update ({} of at most {} in a row)", step, where, in_a_row_, most_));
  return false;
}

}  // namespace annulus
