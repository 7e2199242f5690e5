#pragma once

// nvcc's built-in declarations as plain C++: a kernel is a function that is called once for each thread.

#include <math.h>
#include <stdint.h>
#include <stdio.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "tests/gpu/emulator/vector_types.h"

#define __global__
#define __grid_constant__
#define __device__
#define __host__
#define __constant__
#define __grid_constant__
#define __shared__ static thread_local  // a block's threads all run on their stream's thread
#define __forceinline__ inline __attribute__((always_inline))
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)

// These are of the current thread.
inline constinit thread_local uint3 threadIdx{}, blockIdx{};
inline constinit thread_local dim3 blockDim{}, gridDim{};
constexpr int warpSize = 32;

namespace emulated {

enum class BlockVote { none, count, all, any };
enum class WarpOperation { sync, exchange, ballot };

// A barrier of the whole block; returns the vote over all threads' predicates.
int block_barrier(BlockVote vote, int predicate);

// A barrier of the warp's running threads in the mask. exchange: each passes a value and returns that of `source_lane`,
// or a pattern of ones if that lane does not participate. ballot: returns the mask of the threads whose value is not 0.
std::uint64_t warp_barrier(WarpOperation operation, unsigned mask, std::uint64_t value, int source_lane);

void await_predecessor();

// The memory of the block that runs now, for kernels that declare shared memory without a size: kSharedBytes.
constexpr std::size_t kSharedBytes = 227 << 10;
std::byte* shared_memory();

// Ends the program, because a kernel did something undefined in CUDA.
[[noreturn]] void abort_emulation(const char* why);

unsigned lane();  // of the current thread, within its warp

enum class FenceScope { block, device };  // device: and beyond

void fence(FenceScope scope);  // not inline: g++ warns of fences in code whose accesses are reported

template <class T>
T shuffle(unsigned mask, T value, int source) {
  static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>);
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = warp_barrier(WarpOperation::exchange, mask, bits, source);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

// Returns the lane that a shuffle reads, or the thread's own if that is outside its section of `width` lanes.
inline int within(int source, int width) {
  const int own = static_cast<int>(lane());
  return source / width == own / width && source >= 0 ? source : own;
}

}  // namespace emulated

inline void __syncthreads() {
  emulated::block_barrier(emulated::BlockVote::none, 0);
}
inline int __syncthreads_count(int predicate) {
  return emulated::block_barrier(emulated::BlockVote::count, predicate);
}
inline int __syncthreads_and(int predicate) {
  return emulated::block_barrier(emulated::BlockVote::all, predicate);
}
inline int __syncthreads_or(int predicate) {
  return emulated::block_barrier(emulated::BlockVote::any, predicate);
}
inline void __syncwarp(unsigned mask = 0xffffffffu) {
  emulated::warp_barrier(emulated::WarpOperation::sync, mask, 0, 0);
}

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = warpSize) {
  const int section = static_cast<int>(emulated::lane()) / width * width;
  return emulated::shuffle(mask, value, section + (source & (width - 1)));
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = warpSize) {
  return emulated::shuffle(mask, value, emulated::within(static_cast<int>(emulated::lane()) ^ lanes, width));
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned lanes, int width = warpSize) {
  return emulated::shuffle(mask, value, emulated::within(static_cast<int>(emulated::lane() + lanes), width));
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned lanes, int width = warpSize) {
  return emulated::shuffle(mask, value, emulated::within(static_cast<int>(emulated::lane() - lanes), width));
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  return static_cast<unsigned>(emulated::warp_barrier(emulated::WarpOperation::ballot, mask, predicate != 0, 0));
}
inline int __any_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate) != 0;
}
inline int __all_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate == 0) == 0;
}

// Atomics: streams are threads, and other processes may have the memory too.
template <class T>
T atomicAdd(T* address, std::type_identity_t<T> value) {
  return std::atomic_ref(*address).fetch_add(value, std::memory_order_relaxed);
}
template <class T>
T atomicSub(T* address, std::type_identity_t<T> value) {
  return std::atomic_ref(*address).fetch_sub(value, std::memory_order_relaxed);
}
template <class T>
T atomicExch(T* address, std::type_identity_t<T> value) {
  return std::atomic_ref(*address).exchange(value, std::memory_order_relaxed);
}
template <class T>
T atomicCAS(T* address, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  std::atomic_ref(*address).compare_exchange_strong(expected, value, std::memory_order_relaxed);
  return expected;
}
template <class T>
T atomicOr(T* address, std::type_identity_t<T> value) {
  return std::atomic_ref(*address).fetch_or(value, std::memory_order_relaxed);
}
template <class T>
T atomicAnd(T* address, std::type_identity_t<T> value) {
  return std::atomic_ref(*address).fetch_and(value, std::memory_order_relaxed);
}
template <class T>
T atomicMax(T* address, std::type_identity_t<T> value) {
  std::atomic_ref place(*address);
  T old = place.load(std::memory_order_relaxed);
  while (old < value && !place.compare_exchange_weak(old, value, std::memory_order_relaxed)) {
  }
  return old;
}
template <class T>
T atomicMin(T* address, std::type_identity_t<T> value) {
  std::atomic_ref place(*address);
  T old = place.load(std::memory_order_relaxed);
  while (value < old && !place.compare_exchange_weak(old, value, std::memory_order_relaxed)) {
  }
  return old;
}
// Counts up to `most`, then wraps to 0.
inline unsigned atomicInc(unsigned* address, unsigned most) {
  std::atomic_ref place(*address);
  unsigned old = place.load(std::memory_order_relaxed);
  while (!place.compare_exchange_weak(old, old >= most ? 0 : old + 1, std::memory_order_relaxed)) {
  }
  return old;
}

inline void __threadfence_block() {
  emulated::fence(emulated::FenceScope::block);
}
inline void __threadfence() {
  emulated::fence(emulated::FenceScope::device);
}
inline void __threadfence_system() {
  emulated::fence(emulated::FenceScope::device);
}

// Loads and stores with cache hints, which are ignored here.
template <class T>
T __ldg(const T* address) {
  return *address;
}
template <class T>
T __ldcs(const T* address) {
  return *address;
}
template <class T>
T __ldcg(const T* address) {
  return *address;
}
template <class T>
T __ldcv(const T* address) {
  return *static_cast<const volatile T*>(address);
}
template <class T>
void __stcs(T* address, std::type_identity_t<T> value) {
  *address = value;
}
template <class T>
void __stcg(T* address, std::type_identity_t<T> value) {
  *address = value;
}
template <class T>
void __stwt(T* address, std::type_identity_t<T> value) {
  *address = value;
}

using std::max;
using std::min;

inline float rsqrtf(float x) {
  return 1.0f / sqrtf(x);
}
inline float __saturatef(float x) {
  return fminf(fmaxf(x, 0.0f), 1.0f);
}
inline float __frsqrt_rn(float x) {
  return static_cast<float>(1.0 / sqrt(static_cast<double>(x)));
}
inline float __fdividef(float x, float y) {
  return x / y;
}
inline float __frcp_rn(float x) {
  return 1.0f / x;
}
inline float __fsqrt_rn(float x) {
  return sqrtf(x);
}
inline float __fdiv_rn(float x, float y) {
  return x / y;
}
inline float __fmaf_rn(float x, float y, float z) {
  return fmaf(x, y, z);
}
inline void cudaGridDependencySynchronize() {
  emulated::await_predecessor();
}
inline void cudaTriggerProgrammaticLaunchCompletion() {}  // kernels run in their turn
// Never contracted to a multiply-add: the volatile product is rounded.
inline float __fmul_rn(float x, float y) {
  const volatile float product = x * y;
  return product;
}
inline float __fadd_rn(float x, float y) {
  const volatile float left = x;
  return left + y;
}
inline float __fsub_rn(float x, float y) {
  const volatile float left = x;
  return left - y;
}
// The C library declares these names too, without exporting them.
#define __expf(x) expf(x)
#define __logf(x) logf(x)
#define __powf(x, y) powf(x, y)

inline int __popc(unsigned x) {
  return std::popcount(x);
}
inline int __clz(int x) {
  return std::countl_zero(static_cast<unsigned>(x));
}
inline int __ffs(int x) {
  return __builtin_ffs(x);
}
inline unsigned __float_as_uint(float x) {
  return std::bit_cast<unsigned>(x);
}
inline int __float_as_int(float x) {
  return std::bit_cast<int>(x);
}
inline float __uint_as_float(unsigned x) {
  return std::bit_cast<float>(x);
}
inline float __int_as_float(int x) {
  return std::bit_cast<float>(x);
}
inline unsigned __umulhi(unsigned x, unsigned y) {
  return static_cast<unsigned>(static_cast<std::uint64_t>(x) * y >> 32);
}
