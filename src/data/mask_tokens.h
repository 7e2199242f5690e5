#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "src/data/augment.h"

namespace annulus {

// Masks a window {2, length}, whose first row has a text's tokens. If n tokens from `begin` on are not missing,
// masked_tokens(n) of them are chosen at random. In the first row, `mask` replaces 80 % and random tokens replace 10 %
// (Devlin et al., "BERT", NAACL 2019, appendix A.1). The second row has the chosen tokens as they were, and -1
// elsewhere.
void mask_tokens(Draws& draws, std::size_t vocabulary, std::size_t mask, std::span<std::int32_t> window,
                 std::size_t begin = 0);

}  // namespace annulus
