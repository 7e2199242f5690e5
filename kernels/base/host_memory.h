#pragma once

#include <cstdint>
#include <new>
#include <span>

#include "kernels/base/tensor.h"

namespace annulus {

constexpr std::size_t kCacheLine = 64;  // bytes
constexpr std::size_t kPage = 4096;

// Allocates zeroed process memory, aligned for any use. A buffer as large as a page or larger does not share pages with
// other buffers; large buffers use huge pages if the system has them. Throws Error if there is not enough memory.
Buffer allocate_host(std::size_t bytes);

// Host memory as int32, and as float32.
inline std::span<const std::int32_t> integers(DeviceView view) {
  return {reinterpret_cast<const std::int32_t*>(view.address), view.bytes / sizeof(std::int32_t)};
}
inline std::span<float> floats(DeviceView view) {
  return {reinterpret_cast<float*>(view.address), view.bytes / sizeof(float)};
}
inline DeviceView view_of(std::span<float> values) {
  return {reinterpret_cast<std::byte*>(values.data()), values.size_bytes()};
}

// A scratch array in host memory, which grows as needed and never shrinks.
template <class T>
class HostArray {
 public:
  // Returns the first `count` elements. If the array has to grow, the old contents are lost.
  std::span<T> first(std::size_t count) {
    if (memory_.view().bytes < count * sizeof(T)) memory_ = allocate_host(count * sizeof(T));
    return std::span(reinterpret_cast<T*>(memory_.view().address), count);
  }

 private:
  Buffer memory_;
};

// Allocates containers whose elements begin on a cache line.
template <class T>
struct CacheLineAllocator {
  using value_type = T;
  CacheLineAllocator() = default;
  template <class Other>
  CacheLineAllocator(const CacheLineAllocator<Other>&) {}
  T* allocate(std::size_t count) {
    return static_cast<T*>(::operator new(count * sizeof(T), std::align_val_t(kCacheLine)));
  }
  void deallocate(T* memory, std::size_t) { ::operator delete(memory, std::align_val_t(kCacheLine)); }
  bool operator==(const CacheLineAllocator&) const = default;
};

}  // namespace annulus
