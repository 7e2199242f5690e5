#include "src/train/loss_rise.h"

#include <algorithm>

namespace annulus {
namespace {

constexpr double kRise = 2, kShareOfFirst = 0.5;

std::optional<LossRise> rise_of_last(std::span<const double> losses) {
  if (losses.size() < 2) return {};
  const auto lowest = std::ranges::min_element(losses.first(losses.size() - 1));
  if (losses.back() <= kRise * *lowest || losses.back() <= kShareOfFirst * losses.front()) return {};
  return LossRise{losses.back() / *lowest, static_cast<std::size_t>(lowest - losses.begin())};
}

}  // namespace

std::optional<LossRise> loss_rise(std::span<const double> losses) {
  if (losses.empty() || rise_of_last(losses.first(losses.size() - 1))) return {};
  return rise_of_last(losses);
}

}  // namespace annulus
