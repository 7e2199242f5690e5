#include "models/memory/memory_plan.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace annulus {
namespace {

std::size_t rounded_up(std::size_t bytes) {
  return (bytes + MemoryPlan::kAlignment - 1) / MemoryPlan::kAlignment * MemoryPlan::kAlignment;
}

struct Taken {
  std::size_t begin, end;
};

// Returns where the smallest sufficient gap begins, or the end of all pieces if there is none. REQUIRES: `taken` is
// sorted by begin.
std::size_t tightest_gap(const std::vector<Taken>& taken, std::size_t bytes) {
  std::size_t best = 0, best_size = std::numeric_limits<std::size_t>::max(), end = 0;
  for (const Taken& next : taken) {
    const std::size_t gap = next.begin > end ? next.begin - end : 0;
    if (gap >= bytes && gap < best_size) {
      best = end;
      best_size = gap;
    }
    end = std::max(end, next.end);
  }
  return best_size == std::numeric_limits<std::size_t>::max() ? end : best;
}

}  // namespace

bool Lifetime::meets(const Lifetime& other) const {
  const auto range_meets = [&other](const LiveRange& range) {
    return range.meets(other.first) || (other.again && range.meets(*other.again));
  };
  return range_meets(first) || (again && range_meets(*again));
}

MemoryPlan plan_memory(std::span<const Lifetime> pieces) {
  std::vector<std::size_t> order(pieces.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater{}, [&](std::size_t piece) { return pieces[piece].bytes; });

  MemoryPlan plan{std::vector<std::size_t>(pieces.size()), 0};
  std::vector<std::size_t> placed;
  std::vector<Taken> taken;
  for (const std::size_t piece : order) {
    const std::size_t bytes = rounded_up(pieces[piece].bytes);
    if (bytes == 0) continue;
    taken.clear();
    for (const std::size_t other : placed)
      if (pieces[other].meets(pieces[piece]))
        taken.push_back({plan.offsets[other], plan.offsets[other] + rounded_up(pieces[other].bytes)});
    std::ranges::sort(taken, {}, &Taken::begin);
    plan.offsets[piece] = tightest_gap(taken, bytes);
    plan.bytes = std::max(plan.bytes, plan.offsets[piece] + bytes);
    placed.push_back(piece);
  }
  return plan;
}

}  // namespace annulus
