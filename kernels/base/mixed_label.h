#pragma once

#include <cstdint>

namespace annulus {

// The labels of an image that was mixed from two: the target probability of `label` is share / kWhole, that of `other`
// the rest.
struct MixedLabel {
  static constexpr std::int32_t kWhole = 1 << 16;

  std::int32_t label, other, share;

  float share_of_label() const { return static_cast<float>(share) / kWhole; }
  bool operator==(const MixedLabel&) const = default;
};

}  // namespace annulus
