#pragma once

#include <new>
#include <span>

#include "kernels/base/tensor.h"

namespace annulus {

constexpr std::size_t kCacheLine = 64;  // bytes
constexpr std::size_t kPage = 4096;

// Zeroed memory of this process, aligned for any use. From a page on, pieces share none with others; large ones lie on
// huge pages where the system has them. Throws Error where there is not so much.
Buffer allocate_host(std::size_t bytes);

// Of memory that is the process's own, as float32.
inline std::span<float> floats(DeviceView view) {
  return {reinterpret_cast<float*>(view.address), view.bytes / sizeof(float)};
}
inline DeviceView view_of(std::span<float> values) {
  return {reinterpret_cast<std::byte*>(values.data()), values.size_bytes()};
}

// Such memory as scratch: as much of it as was ever needed at once.
template <class T>
class HostArray {
 public:
  // The first `count`, after making room for so many, which may lose what they held.
  std::span<T> first(std::size_t count) {
    if (memory_.view().bytes < count * sizeof(T)) memory_ = allocate_host(count * sizeof(T));
    return std::span(reinterpret_cast<T*>(memory_.view().address), count);
  }

 private:
  Buffer memory_;
};

// For containers whose elements shall begin on a cache line.
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
