#include "kernels/resize_taps.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>

namespace annulus {
namespace {

// Files store scales as float32. Among the numbers with the same float32, users write the number with the fewest
// digits.
double as_written(float scale) {
  char text[32];
  const char* end = std::to_chars(text, std::end(text), scale).ptr;
  double written = scale;
  std::from_chars(text, end, written);
  return written;
}

// Computed in float32. The asymmetric coordinate equals PyTorch's to the last bit, so that rounding down selects the
// same pixels; all other kinds round only once, so that exact halves remain exact.
float coordinate(Resize::Coordinates kind, std::size_t output, std::size_t inputs, std::size_t outputs, float scale) {
  using enum Resize::Coordinates;
  const auto i = static_cast<float>(output), in = static_cast<float>(inputs), out = static_cast<float>(outputs);
  const auto scaled = [&](float place) { return scale > 0 ? place / scale : place * in / out; };
  switch (kind) {
    case half_pixel:
      return scaled(i + 0.5f) - 0.5f;
    case pytorch_half_pixel:
      return outputs > 1 ? scaled(i + 0.5f) - 0.5f : 0;
    case align_corners:
      return outputs > 1 ? i * (in - 1) / (out - 1) : 0;
    case asymmetric:
      break;
  }
  return i * (scale > 0 ? static_cast<float>(1 / as_written(scale)) : in / out);
}

float rounded(float place, Resize::Rounding rounding) {
  using enum Resize::Rounding;
  switch (rounding) {
    case round_prefer_floor:
      return std::ceil(place - 0.5f);
    case round_prefer_ceil:
      return std::floor(place + 0.5f);
    case ceil:
      return std::ceil(place);
    case floor:
      break;
  }
  return std::floor(place);
}

std::vector<ResizeTap> taps(const Resize& resize, std::size_t inputs, std::size_t outputs, float scale) {
  std::vector<ResizeTap> all;
  const auto last = static_cast<float>(inputs - 1);
  for (std::size_t output = 0; output < outputs; ++output) {
    const float place = coordinate(resize.coordinates, output, inputs, outputs, scale);
    if (resize.linear) {
      const float clamped = std::clamp(place, 0.0f, last), first = std::floor(clamped), weight = clamped - first;
      const auto pixel = static_cast<std::size_t>(first);
      all.push_back({pixel, std::min(pixel + 1, inputs - 1), 1 - weight, weight});
    } else {
      const auto pixel = static_cast<std::size_t>(std::clamp(rounded(place, resize.rounding), 0.0f, last));
      all.push_back({pixel, pixel, 1, 0});
    }
  }
  return all;
}

}  // namespace

std::vector<ResizeTap> row_taps(const Resize& resize, const Shape& images) {
  return taps(resize, images[2], resize.size.height, resize.row_scale);
}

std::vector<ResizeTap> column_taps(const Resize& resize, const Shape& images) {
  return taps(resize, images[3], resize.size.width, resize.column_scale);
}

}  // namespace annulus
