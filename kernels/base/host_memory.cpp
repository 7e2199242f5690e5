#include "kernels/base/host_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "kernels/base/error.h"

namespace annulus {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

}  // namespace

Buffer allocate_host(std::size_t bytes) {
  const std::size_t alignment = bytes >= kHugePage ? kHugePage : bytes >= kPage ? kPage : kCacheLine;
  const std::size_t rounded = (std::max<std::size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
  auto* address = static_cast<std::byte*>(std::aligned_alloc(alignment, rounded));
  if (address == nullptr) fail("cannot allocate {} bytes of memory: use a smaller batch or model", bytes);
  if (alignment == kHugePage) madvise(address, rounded, MADV_HUGEPAGE);  // only a hint, so a failure does not matter
  std::memset(address, 0, rounded);
  return {address, bytes, [](std::byte* memory) { std::free(memory); }};
}

}  // namespace annulus
