#pragma once

#include <cstring>

#include "kernels/base/random.h"
#include "src/data/loader.h"

namespace annulus::test {

// Windows [begin, end) of an endless text of random tokens, some of which are missing.
inline Batch text_batch(const StepPlan& step, const Range& range, const TokenShape& shape) {
  Batch batch{step, {}, {}, {}, {}};
  std::vector<std::int32_t> tokens;
  for (std::size_t i = range.begin; i < range.end; ++i)
    for (std::size_t k = 0; k <= shape.length; ++k)
      tokens.push_back(k % 7 == 5 ? -1 : static_cast<std::int32_t>(mix(i, k) % shape.vocabulary));
  const auto bytes = std::as_bytes(std::span(tokens));
  batch.images.resize(bytes.size());
  std::memcpy(batch.images.data(), bytes.data(), bytes.size());
  batch.labels.resize(range.size());
  return batch;
}

}  // namespace annulus::test
