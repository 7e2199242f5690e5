#include "src/io/fletcher32.h"

#include <algorithm>

namespace annulus {
namespace {

constexpr std::size_t kWordsAtOnce = 360;  // the largest block whose sums fit into 32 bits

std::uint32_t folded(std::uint32_t sum) {
  return (sum & 0xffff) + (sum >> 16);
}

}  // namespace

std::uint32_t fletcher32(std::span<const std::uint8_t> bytes) {
  std::uint32_t sum = 0, sum_of_sums = 0;
  while (!bytes.empty()) {
    const auto some = bytes.first(std::min(bytes.size(), 2 * kWordsAtOnce));
    for (std::size_t i = 0; i < some.size(); i += 2) {
      const unsigned low = i + 1 < some.size() ? some[i + 1] : 0;
      sum += unsigned{some[i]} << 8 | low;
      sum_of_sums += sum;
    }
    sum = folded(sum);
    sum_of_sums = folded(sum_of_sums);
    bytes = bytes.subspan(some.size());
  }
  return folded(sum_of_sums) << 16 | folded(sum);
}

}  // namespace annulus
