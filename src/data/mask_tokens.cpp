#include "src/data/mask_tokens.h"

#include <algorithm>

#include "kernels/base/window_form.h"

namespace annulus {

// Chooses by selection sampling: the probability for each token is wanted / left.
void mask_tokens(Draws& draws, std::size_t vocabulary, std::size_t mask, std::span<std::int32_t> window,
                 std::size_t begin) {
  const std::size_t length = window.size() / 2;
  const auto read = window.first(length), predicted = window.subspan(length);
  std::ranges::fill(predicted, -1);
  const auto is_token = [](std::int32_t token) { return token >= 0; };
  auto left = static_cast<std::size_t>(std::ranges::count_if(read.subspan(begin), is_token));
  std::size_t wanted = left == 0 ? 0 : masked_tokens(left);
  for (std::size_t i = begin; i < length; ++i) {
    if (read[i] < 0 || draws.below(left--) >= wanted) continue;
    --wanted;
    predicted[i] = read[i];
    const std::uint64_t fate = draws.below(10);
    if (fate < 8) read[i] = static_cast<std::int32_t>(mask);
    if (fate == 8) read[i] = static_cast<std::int32_t>(draws.below(vocabulary));
  }
}

}  // namespace annulus
