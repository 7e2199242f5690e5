#pragma once

#include <cstddef>
#include <optional>
#include <span>

namespace annulus {

// The training loss of the last epoch is `factor` times that of an earlier one.
struct LossRise {
  double factor;
  std::size_t since;  // index of the epoch with the lowest loss
};

// Returns the rise of the last of these losses, one for each epoch, if it is so large that training seems to have
// collapsed: to more than twice the lowest loss before and more than half of the first. Nothing if the epoch before it
// had risen that far already.
std::optional<LossRise> loss_rise(std::span<const double> losses);

}  // namespace annulus
