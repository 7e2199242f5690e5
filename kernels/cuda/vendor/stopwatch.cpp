#include "kernels/cuda/vendor/stopwatch.h"

#include <algorithm>
#include <cstdint>
#include <span>

#include "kernels/base/random.h"

namespace annulus::cuda {

Buffer allocate_numbers(std::size_t bytes) {
  std::vector<std::uint16_t> numbers(std::size_t{1} << 19);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<std::uint16_t>(0x2c00 | (mix(i) & 0x83ff));
  const auto pattern = std::as_bytes(std::span(numbers));
  Buffer memory = allocate_device(bytes);
  for (std::size_t at = 0; at < bytes; at += pattern.size())
    check(cudaMemcpy(memory.view().address + at, pattern.data(), std::min(bytes - at, pattern.size()),
                     cudaMemcpyHostToDevice));
  check(cudaDeviceSynchronize());  // other streams do not wait for these copies
  return memory;
}

std::string current_device_name() {
  int device = 0;
  cudaDeviceProp properties{};
  check(cudaGetDevice(&device));
  check(cudaGetDeviceProperties(&properties, device));
  return properties.name;
}

}  // namespace annulus::cuda
