#pragma once

#include <cstdint>

namespace annulus {

// The label of an image mixed from two: the target probability is share / kWhole for `label`, and the rest for `other`.
struct MixedLabel {
  static constexpr std::int32_t kWhole = 1 << 16;

  std::int32_t label, other, share;

  float share_of_label() const { return static_cast<float>(share) / kWhole; }
  bool operator==(const MixedLabel&) const = default;
};

}  // namespace annulus
