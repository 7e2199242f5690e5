#include "collectives/reduction.h"

#include <algorithm>
#include <array>
#include <type_traits>

#include "collectives/half.h"
#include "kernels/base/error.h"

namespace annulus {
namespace {

constexpr std::size_t kBlock = 2048;  // wide elements at a time, which fit the L1 cache

template <class T>
constexpr bool is_half = std::is_same_v<T, Bf16> || std::is_same_v<T, Fp16>;
template <class T>
using WideOf = std::conditional_t<is_half<T>, float, T>;

struct Sum {
  template <class T>
  static T combine(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      using Unsigned = std::make_unsigned_t<T>;  // which wraps around
      return static_cast<T>(static_cast<Unsigned>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b)));
    } else {
      return a + b;
    }
  }
};
struct Min {
  template <class T>
  static T combine(T a, T b) {
    return a < b || a != a ? a : b;
  }
};
struct Max {
  template <class T>
  static T combine(T a, T b) {
    return a > b || a != a ? a : b;
  }
};

template <class T>
T* elements(std::byte* bytes, std::size_t offset = 0) {
  return reinterpret_cast<T*>(bytes) + offset;
}

// to = a and b. `to` may be `a` or `b` themselves, but must not overlap them otherwise.
template <class A, class T, class Combine>
void combine_two(const A* a, const T* b, WideOf<T>* to, std::size_t count) {
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i)
    to[i] = Combine::combine(static_cast<WideOf<T>>(a[i]), static_cast<WideOf<T>>(b[i]));
}

template <class T, class Combine>
void combine(std::span<std::byte* const> arrays, std::size_t first, const Range& part, std::byte* to) {
  const auto at = [&](std::size_t number) { return elements<T>(arrays[(first + number) % arrays.size()], part.begin); };
  auto* const wide = elements<WideOf<T>>(to);
  combine_two<T, T, Combine>(at(0), at(1), wide, part.size());
  for (std::size_t number = 2; number < arrays.size(); ++number)
    combine_two<WideOf<T>, T, Combine>(wide, at(number), wide, part.size());
}

template <class T, bool kAverages>
T finished(WideOf<T> value, [[maybe_unused]] WideOf<T> divisor) {
  if constexpr (kAverages)
    return static_cast<T>(value / divisor);
  else
    return static_cast<T>(value);
}

// The arrays do not overlap.
template <class T, class Combine, bool kAverages>
void combine_into_both(std::byte* a_bytes, std::byte* b_bytes, std::size_t count, std::size_t divisor) {
  using Wide = WideOf<T>;
  T *const a = elements<T>(a_bytes), *const b = elements<T>(b_bytes);
  const auto by = static_cast<Wide>(divisor);
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i)
    a[i] = b[i] = finished<T, kAverages>(Combine::combine(static_cast<Wide>(a[i]), static_cast<Wide>(b[i])), by);
}

template <class T>
void widen(const std::byte* values, std::size_t count, std::byte* wide) {
  const T* const from = reinterpret_cast<const T*>(values);
  for (std::size_t i = 0; i < count; ++i) elements<WideOf<T>>(wide)[i] = static_cast<WideOf<T>>(from[i]);
}

template <class T, bool kAverages>
void finish(const std::byte* wide, std::size_t count, std::size_t divisor, std::byte* to) {
  using Wide = WideOf<T>;
  const Wide* const from = reinterpret_cast<const Wide*>(wide);
  T* const finished_ = elements<T>(to);
  const auto by = static_cast<Wide>(divisor);
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i) finished_[i] = finished<T, kAverages>(from[i], by);
}

struct Named {
  ElementType type;
  const char* name;
  std::size_t bytes;
};
constexpr std::array kTypes = {
    Named{ElementType::fp32, "fp32", 4},   Named{ElementType::fp64, "fp64", 8},   Named{ElementType::fp16, "fp16", 2},
    Named{ElementType::bf16, "bf16", 2},   Named{ElementType::int32, "int32", 4}, Named{ElementType::int64, "int64", 8},
    Named{ElementType::uint8, "uint8", 1},
};
constexpr std::array kOperations = {"sum", "min", "max", "average"};

// By operation, in the order of the enumeration.
using Loops = std::array<ReductionLoops, kOperations.size()>;

template <class T, class Combine, bool kAverages>
constexpr ReductionLoops loops_for(ElementType type, ReduceOperation operation) {
  const Reduction wide{is_half<T> ? ElementType::fp32 : type, operation};
  return {sizeof(T),
          wide,
          combine<T, Combine>,
          combine_into_both<T, Combine, kAverages>,
          widen<T>,
          kAverages || is_half<T> ? finish<T, kAverages> : nullptr};
}

template <class T>
constexpr Loops all_loops_for(ElementType type) {
  // Averages of integers are refused before.
  return {loops_for<T, Sum, false>(type, ReduceOperation::sum), loops_for<T, Min, false>(type, ReduceOperation::min),
          loops_for<T, Max, false>(type, ReduceOperation::max),
          loops_for<T, Sum, !std::is_integral_v<T>>(type, ReduceOperation::sum)};
}

// By type, in the order of the enumeration.
constexpr std::array<Loops, kTypes.size()> kLoops = {
    all_loops_for<float>(ElementType::fp32),         all_loops_for<double>(ElementType::fp64),
    all_loops_for<Fp16>(ElementType::fp16),          all_loops_for<Bf16>(ElementType::bf16),
    all_loops_for<std::int32_t>(ElementType::int32), all_loops_for<std::int64_t>(ElementType::int64),
    all_loops_for<std::uint8_t>(ElementType::uint8)};

}  // namespace

std::size_t bytes_of(ElementType type) {
  return kTypes.at(static_cast<std::size_t>(type)).bytes;
}

std::string to_string(ElementType type) {
  return kTypes.at(static_cast<std::size_t>(type)).name;
}

std::string to_string(ReduceOperation operation) {
  return kOperations.at(static_cast<std::size_t>(operation));
}

void expect_possible(const Reduction& reduction) {
  const bool integers = reduction.type == ElementType::int32 || reduction.type == ElementType::int64 ||
                        reduction.type == ElementType::uint8;
  if (integers && reduction.operation == ReduceOperation::average)
    fail("an average of {} is not an integer: sum, and divide as you need it", to_string(reduction.type));
}

const ReductionLoops& loops_of(const Reduction& reduction) {
  return kLoops.at(static_cast<std::size_t>(reduction.type)).at(static_cast<std::size_t>(reduction.operation));
}

void reduce(const ReductionLoops& loops, std::span<std::byte* const> arrays, std::size_t first, const Range& part,
            std::byte* to) {
  if (loops.finish == nullptr) return loops.combine(arrays, first, part, to);
  alignas(64) std::byte wide[kBlock * sizeof(double)];
  for (std::size_t begin = part.begin; begin < part.end; begin += kBlock) {
    const Range block{begin, std::min(part.end, begin + kBlock)};
    loops.combine(arrays, first, block, wide);
    loops.finish(wide, block.size(), arrays.size(), to + (begin - part.begin) * loops.element_bytes);
  }
}

}  // namespace annulus
