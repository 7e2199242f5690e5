#pragma once

#include <cstdint>

#include "src/data/loader.h"
#include "tests/unit/random_values.h"

namespace annulus::test {

// Samples [begin, end) of an endless random data set.
inline Batch image_batch(const StepPlan& step, const Range& range, std::size_t pixels, std::size_t classes) {
  Batch batch{step, {}, {}, {}, {}};
  for (std::size_t i = range.begin; i < range.end; ++i) {
    const auto image = random_pixels(pixels, i);
    batch.images.insert(batch.images.end(), image.begin(), image.end());
    batch.labels.push_back(static_cast<std::int32_t>(mix(i) % classes));
    batch.keys.push_back(static_cast<std::int32_t>(i));
  }
  return batch;
}

}  // namespace annulus::test
