#include "kernels/cpu/loops/squares.h"

#include <algorithm>
#include <array>

#include "kernels/base/host_memory.h"
#include "kernels/cpu/loops/for_each_element.h"
#include "kernels/cpu/loops/vectors.h"

namespace annulus::cpu {
namespace {

constexpr std::size_t kLine = kCacheLine / sizeof(float);
constexpr std::size_t kLines = 4;           // that are summed at a time
constexpr std::size_t kBlock = 64 * kLine;  // floats; the sums of a block's lines are added together

typedef double Doubles __attribute__((vector_size(kLines * sizeof(double))));

Doubles squares_of_line(const float* line) {
  Doubles sum{};
  for (std::size_t i = 0; i < kLine; i += kLines) {
    Doubles values;
    for (std::size_t lane = 0; lane < kLines; ++lane) values[lane] = line[i + lane];
    sum += values * values;
  }
  return sum;
}

// Returns the sum of squares in each line.
Doubles squares_of_lines(const float* lines) {
  const auto pair = [](Doubles a, Doubles b) {
    return __builtin_shufflevector(a, b, 0, 4, 2, 6) + __builtin_shufflevector(a, b, 1, 5, 3, 7);
  };
  const Doubles first = pair(squares_of_line(lines), squares_of_line(lines + kLine)),
                second = pair(squares_of_line(lines + 2 * kLine), squares_of_line(lines + 3 * kLine));
  return __builtin_shufflevector(first, second, 0, 1, 4, 5) + __builtin_shufflevector(first, second, 2, 3, 6, 7);
}

void add_squares_of_block(std::span<const float> values, ExactSum& sum) {
  std::array<double, kBlock / kLine> sums;
  std::size_t count = 0;
  for (; values.size() >= kLines * kLine; values = values.subspan(kLines * kLine), count += kLines)
    store(squares_of_lines(values.data()), sums.data() + count);
  if (!values.empty()) {
    std::array<float, kLines * kLine> rest{};
    std::ranges::copy(values, rest.begin());
    store(squares_of_lines(rest.data()), sums.data() + count);
    count += kLines;
  }
  sum.add({sums.data(), count});
}

}  // namespace

ExactSum squares(std::span<const float> values) {
  ExactSum sum;
#pragma omp parallel if (values.size() >= static_cast <std::size_t>(kParallelElements))
  {
    ExactSum own;
#pragma omp for schedule(static) nowait
    for (std::size_t begin = 0; begin < values.size(); begin += kBlock)
      add_squares_of_block(values.subspan(begin, std::min(kBlock, values.size() - begin)), own);
#pragma omp critical
    sum += own;
  }
  return sum;
}

}  // namespace annulus::cpu
