#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "kernels/base/split.h"

namespace annulus {

enum class ElementType : std::uint8_t { fp32, fp64, fp16, bf16, int32, int64, uint8 };
enum class ReduceOperation : std::uint8_t { sum, min, max, average };

// Combines the ranks' arrays element by element. fp16 and bf16 are computed in float32, and the result is rounded once.
// A sum of integers wraps around. A minimum or maximum with a NaN is NaN.
struct Reduction {
  ElementType type = ElementType::fp32;
  ReduceOperation operation = ReduceOperation::sum;
  bool operator==(const Reduction&) const = default;
};

std::size_t bytes_of(ElementType type);
std::string to_string(ElementType type);
std::string to_string(ReduceOperation operation);
void expect_possible(const Reduction& reduction);  // throws Error for an average of integers

// The loops of a reduction; all pointers are aligned to the element type. A wide element is a float for fp16 and bf16,
// else an element.
struct ReductionLoops {
  std::size_t element_bytes;
  Reduction wide;  // of wide elements, without the division

  // to = the combination of `part` of every array, in the order of the arrays from `first` on, round to the array
  // before it. `to` has wide elements; it may be `part` of array `first` itself.
  void (*combine)(std::span<std::byte* const> arrays, std::size_t first, const Range& part, std::byte* to);
  // Both become the result for the two arrays; `divisor` is for an average.
  void (*combine_into_both)(std::byte* a, std::byte* b, std::size_t count, std::size_t divisor);
  void (*widen)(const std::byte* values, std::size_t count, std::byte* wide);
  // Divides, if it is an average, and rounds. In place if a wide element is an element. Null if nothing is to be done.
  void (*finish)(const std::byte* wide, std::size_t count, std::size_t divisor, std::byte* to);
};

// REQUIRES: expect_possible().
const ReductionLoops& loops_of(const Reduction& reduction);

// Like ReductionLoops::combine, but `to` has finished elements, and the divisor is the number of arrays.
void reduce(const ReductionLoops& loops, std::span<std::byte* const> arrays, std::size_t first, const Range& part,
            std::byte* to);

}  // namespace annulus
