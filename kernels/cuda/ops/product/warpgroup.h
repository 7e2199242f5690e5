#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_pipeline.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#ifndef __CUDACC__
#include <warpgroup_products.h>  // the emulator's
#endif

// Products of tiles in shared memory, by warpgroups (128 threads): Hopper's wgmma, for compute capability 9.0 only (PTX
// ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions"). A tile's rows have 64 16-bit values; a
// tile is aligned to kTileAlignment. The 16-byte vectors in 8 rows are permuted (128-byte swizzle), so that neither
// reading rows nor reading columns has bank conflicts.
namespace annulus::cuda {

constexpr unsigned kTileValues = 64;       // in a row
constexpr unsigned kTileRowBytes = 128;    // of a row
constexpr unsigned kTileVectors = 8;       // in a row
constexpr unsigned kTileAlignment = 1024;  // bytes, 8 rows
constexpr unsigned kProductDepth = 16;     // values that a single product adds up
constexpr unsigned kWarpgroup = 128;       // threads
constexpr unsigned kWarpgroupRows = 64;    // in a product

// Returns the offset of a row's vector in a tile, in bytes.
__device__ inline unsigned tile_offset(unsigned row, unsigned vector) {
  return row * kTileRowBytes + (vector ^ row % 8) * 16;
}

// Neighbours in a tile's row: values to add up (K-major in PTX), or the result's (MN-major).
enum class Neighbours { terms, results };

// Describes an operand in shared memory, from `address` on. `block_bytes`: from one tile to the next, which holds the
// next 64 results; only with Neighbours::results.
__device__ inline std::uint64_t described(const std::byte* address, unsigned block_bytes = 16) {
  constexpr std::uint64_t kSwizzled128 = std::uint64_t{1} << 62;
  const auto start = static_cast<std::uint32_t>(__cvta_generic_to_shared(address));
  return kSwizzled128 | std::uint64_t{kTileAlignment >> 4} << 32 | std::uint64_t{block_bytes >> 4} << 16 |
         (start & 0x3ffff) >> 4;
}

#ifdef __CUDACC__

// The block's shared memory, whose size is set at the launch.
__device__ inline std::byte* shared_memory() {
  extern __shared__ __align__(kTileAlignment) std::byte memory[];
  return memory;
}

// Makes the thread's writes to shared memory visible to products. To be followed by a barrier.
__device__ inline void publish_tiles() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// To be called before a batch's first product.
__device__ inline void begin_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
// To be called after a batch's last product.
__device__ inline void end_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits for all products; then `sums` may be accessed, and the tiles may be overwritten after a barrier.
template <unsigned count>
__device__ void await_products(float (&sums)[count]) {
  __syncwarp();  // before an instruction of whole warps
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
  for (unsigned i = 0; i < count; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

// clang-format off
#define ANNULUS_REGISTERS_32 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, " \
  "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define ANNULUS_REGISTERS_64 ANNULUS_REGISTERS_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, " \
  "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define ANNULUS_SUMS_8(i) "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3]), "+f"(sums[i + 4]), \
  "+f"(sums[i + 5]), "+f"(sums[i + 6]), "+f"(sums[i + 7])
#define ANNULUS_SUMS_32(i) ANNULUS_SUMS_8(i), ANNULUS_SUMS_8(i + 8), ANNULUS_SUMS_8(i + 16), ANNULUS_SUMS_8(i + 24)
#define ANNULUS_SUMS_64(i) ANNULUS_SUMS_32(i), ANNULUS_SUMS_32(i + 32)
#define ANNULUS_PRODUCT(columns, type, registers, a, b, transposed, ...)                                              \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." type "." type " {" registers "}, " a ", " b     \
               ", 1, 1, 1, 0, " transposed ";"                                                                        \
               : __VA_ARGS__                                                                                          \
               : "l"(left), "l"(right), "n"(right_neighbours == Neighbours::results))
// clang-format on

// Multiplies 64 rows of `left` (Neighbours::terms) by 2 `count` columns of `right`, over kProductDepth terms, and adds
// to `sums`, the thread's part of the result: the value in row 16 w + l / 4 + 8 h and column 8 j + l % 4 * 2 + i is
// that of lane l in the warpgroup's warp w, at 4 j + 2 h + i. Not complete before await_products().
template <class T, Neighbours right_neighbours, unsigned count>
__device__ void multiply(float (&sums)[count], std::uint64_t left, std::uint64_t right) {
  static_assert(count == 32 || count == 64);
  constexpr bool kBrain = std::is_same_v<T, __nv_bfloat16>;
  if constexpr (count == 64 && kBrain)
    ANNULUS_PRODUCT("128", "bf16", ANNULUS_REGISTERS_64, "%64", "%65", "%66", ANNULUS_SUMS_64(0));
  else if constexpr (count == 64)
    ANNULUS_PRODUCT("128", "f16", ANNULUS_REGISTERS_64, "%64", "%65", "%66", ANNULUS_SUMS_64(0));
  else if constexpr (kBrain)
    ANNULUS_PRODUCT("64", "bf16", ANNULUS_REGISTERS_32, "%32", "%33", "%34", ANNULUS_SUMS_32(0));
  else
    ANNULUS_PRODUCT("64", "f16", ANNULUS_REGISTERS_32, "%32", "%33", "%34", ANNULUS_SUMS_32(0));
}

#undef ANNULUS_PRODUCT
#undef ANNULUS_SUMS_64
#undef ANNULUS_SUMS_32
#undef ANNULUS_SUMS_8
#undef ANNULUS_REGISTERS_64
#undef ANNULUS_REGISTERS_32

#else

inline std::byte* shared_memory() {
  return emulated::shared_memory();
}
inline void publish_tiles() {}
inline void begin_products() {}
inline void end_products() {}
template <unsigned count>
void await_products(float (&)[count]) {}
template <class T, Neighbours right_neighbours, unsigned count>
void multiply(float (&sums)[count], std::uint64_t left, std::uint64_t right) {
  emulated::multiply<T, right_neighbours == Neighbours::results>(sums, left, right);
}

#endif

}  // namespace annulus::cuda
