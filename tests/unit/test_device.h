#pragma once

#include <cstdlib>
#include <string_view>

#include "kernels/device.h"

namespace annulus::test {

// Whether operations and networks are tested on a GPU (ANNULUS_TEST_DEVICE=cuda).
inline bool on_gpu() {
  const char* device = std::getenv("ANNULUS_TEST_DEVICE");
  return device != nullptr && std::string_view(device) == "cuda";
}

// The CPU with `threads` threads, or a GPU in fp32, which must give the same results.
inline std::unique_ptr<Device> make_device(int threads) {
  return annulus::make_device({.name = on_gpu() ? "cuda" : "cpu", .threads = threads, .precision = Precision::fp32});
}

inline std::vector<std::byte> bytes_of(Device& device, DeviceView view) {
  std::vector<std::byte> bytes(view.bytes);
  device.download(view, bytes);
  return bytes;
}

inline std::vector<float> floats_of(Device& device, DeviceView view) {
  std::vector<float> floats(view.bytes / sizeof(float));
  device.download(view, std::as_writable_bytes(std::span(floats)));
  return floats;
}

}  // namespace annulus::test
