#include "src/onnx/pixels.h"

#include <array>

#include "kernels/base/error.h"

namespace annulus {
namespace {

constexpr std::array kAll{Pixels::automatic, Pixels::normalized, Pixels::to_one, Pixels::to_255};

}  // namespace

const char* name(Pixels pixels) {
  switch (pixels) {
    case Pixels::automatic:
      return "auto";
    case Pixels::normalized:
      return "normalized";
    case Pixels::to_one:
      return "0..1";
    case Pixels::to_255:
      return "0..255";
  }
  return "";
}

Pixels parse_pixels(const std::string& text) {
  for (const Pixels pixels : kAll)
    if (text == name(pixels)) return pixels;
  fail("--pixels must be auto, normalized, 0..1 or 0..255, not \"{}\"", text);
}

}  // namespace annulus
