#include "src/bench/wrong_elements.h"

#include <fmt/format.h>

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/split.h"

namespace annulus {
namespace {

// Element i is multiplier * (i % period) + offset. float32 represents integers up to 2^24, bf16 up to 256.
struct Pattern {
  std::size_t period;
  int multiplier, offset;

  // Calls visit(i, element i) for the range, without a division for each element.
  template <class Visit>
  void for_each(const Range& range, Visit visit) const {
    std::size_t phase = range.begin % period;
    for (std::size_t i = range.begin; i < range.end; ++i, phase = phase + 1 == period ? 0 : phase + 1)
      visit(i, static_cast<float>(multiplier * static_cast<int>(phase) + offset));
  }
};

// This rank's array, before and after.
struct Patterns {
  Pattern given, expected;
};

Patterns exact_patterns(const World& world, MeasuredVerb verb, bool rounds) {
  const int ranks = world.size(), rank = world.rank();
  if (verb == MeasuredVerb::all_gather) return {{1021, 1, 0}, {1021, 1, 0}};
  if (verb == MeasuredVerb::broadcast) return {{1021, 1, rank}, {1021, 1, 0}};
  if (!rounds) return {{1021, 1, rank}, {1021, ranks, ranks * (ranks - 1) / 2}};
  // Alternating signs keep neighbours' sums small on any number of ranks; rank 0 counts twice, so no sum is 0.
  const int share = rank == 0 ? 2 : rank % 2 == 0 ? 1 : -1, sum = ranks % 2 == 0 ? 1 : 2;
  return {{3, share, share}, {3, sum, sum}};
}

}  // namespace

Verb verb_of(MeasuredVerb measured) {
  if (measured == MeasuredVerb::reduce_scatter) return Verb::reduce_scatter;
  return measured == MeasuredVerb::all_gather ? Verb::all_gather : Verb::all_reduce;
}

WrongElements wrong_elements(const World& world, Device& device, AllReduce& all_reduce, MeasuredVerb measured,
                             DeviceView array) {
  const Verb verb = verb_of(measured);
  const auto [given, expected] = exact_patterns(world, measured, all_reduce.info().wire != WireType::fp32);
  const Range whole{0, array.bytes / sizeof(float)};
  const Range own = verb == Verb::all_reduce ? whole : all_reduce.chunk(whole.end);

  std::vector<float> values(whole.end, -1);  // no result has this value
  given.for_each(verb == Verb::all_gather ? own : whole, [&](std::size_t i, float value) { values[i] = value; });
  device.upload(std::as_bytes(std::span(values)), array);
  all_reduce.wait(all_reduce.enqueue(array, {.verb = verb}));
  device.download(array, std::as_writable_bytes(std::span(values)));

  WrongElements wrong;
  expected.for_each(verb == Verb::reduce_scatter ? own : whole, [&](std::size_t i, float value) {
    if (values[i] == value) return;
    if (wrong.count++ == 0)
      wrong.first =
          fmt::format("element {} of {} is {} instead of {} on rank {}", i, whole.end, values[i], value, world.rank());
  });
  std::int64_t count = static_cast<std::int64_t>(wrong.count);
  world.sum({&count, 1});
  wrong.count = static_cast<std::size_t>(count);
  return wrong;
}

}  // namespace annulus
