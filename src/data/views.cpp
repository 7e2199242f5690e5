#include "src/data/views.h"

#include "kernels/base/error.h"
#include "src/data/augment.h"

namespace annulus {

std::vector<View> parse_views(const std::string& name) {
  if (name == "one") return {View{}};
  if (name == "mirror") return {{0.5f, false, 0}, {0.5f, true, 0}};
  if (name == "mirror-shift")
    return {{0.25f, false, 0}, {0.25f, true, 0},    {0.125f, false, 1},
            {0.125f, true, 1}, {0.125f, false, -1}, {0.125f, true, -1}};
  fail("--views {}: unknown; choose one of: one, mirror, mirror-shift", name);
}

void show(const View& view, std::span<std::uint8_t> pixels, const ImageSize& size, std::size_t channels,
          std::vector<std::uint8_t>& scratch) {
  if (view.mirrored) flip_left_to_right(pixels, size, channels);
  if (view.shift != 0) shift_with_reflection(view.shift, view.shift, pixels, size, channels, scratch);
}

}  // namespace annulus
