#include "src/checkpoint/stored_score.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string>

#include "kernels/base/error.h"

namespace annulus {
namespace {

std::string attribute_of(Measure measure) {
  return std::string(info(measure).attribute);
}

}  // namespace

void write_stored_score(hdf5::Group& root, const Score& score) {
  root.set_integer("count", score.count);
  for (const Measure measure : kMeasures)
    if (const auto& value = score[measure])
      root.set_integer(attribute_of(measure), info(measure).is_counted() ? static_cast<std::uint64_t>(*value)
                                                                         : std::bit_cast<std::uint64_t>(*value));
}

std::optional<Score> read_stored_score(const hdf5::Group& root) {
  Score score;
  for (const Measure measure : kMeasures) {
    const std::string attribute = attribute_of(measure);
    if (!root.has_attribute(attribute)) continue;
    if (!root.has_attribute("count")) fail("{}: attribute '{}' without 'count'", root.place(), attribute);
    const std::uint64_t value = root.integer(attribute);
    score[measure] = info(measure).is_counted() ? static_cast<double>(value) : std::bit_cast<double>(value);
  }
  if (!root.has_attribute("count")) return {};
  score.count = root.integer("count");
  if (std::ranges::none_of(kMeasures, [&](Measure one) { return one != Measure::loss && score[one]; }))
    fail("{}: attribute 'count' without the number of '{}' or another result", root.place(),
         attribute_of(Measure::accuracy));
  return score;
}

}  // namespace annulus
