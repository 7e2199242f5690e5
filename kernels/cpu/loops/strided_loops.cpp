#include "kernels/cpu/loops/strided_loops.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/loops/for_each_element.h"

namespace annulus::cpu {
namespace {

struct Dimension {
  std::size_t size, from, to;
};
using Dimensions = std::vector<Dimension>;

std::size_t count(const Dimensions& dimensions) {
  std::size_t product = 1;
  for (const Dimension& d : dimensions) product *= d.size;
  return product;
}

// Drops dimensions of size 1, and joins neighbours that are contiguous in both tensors.
Dimensions joined(const Walk& walk) {
  Dimensions all;
  for (std::size_t i = 0; i < walk.shape.size(); ++i) {
    const Dimension next{walk.shape[i], walk.from[i], walk.to[i]};
    if (next.size == 1) continue;
    if (!all.empty() && all.back().from == next.from * next.size && all.back().to == next.to * next.size)
      all.back() = {all.back().size * next.size, next.from, next.to};
    else
      all.push_back(next);
  }
  return all;
}

struct Position {
  std::size_t from = 0, to = 0;
};

// Returns the position of the index-th element in these dimensions; the last dimension is the fastest.
Position position(const Dimensions& dimensions, std::size_t index) {
  Position at;
  for (std::size_t i = dimensions.size(); i-- > 0;) {
    const auto& [size, from, to] = dimensions[i];
    at.from += index % size * from;
    at.to += index % size * to;
    index /= size;
  }
  return at;
}

// Calls body(position) for all elements in these dimensions, on all threads if each call handles `work` elements and
// there are enough.
template <class Body>
void for_each_position(const Dimensions& dimensions, std::size_t work, const Body& body) {
  const std::size_t all = count(dimensions);
#pragma omp parallel for schedule(static) if (all * work >= static_cast <std::size_t>(kParallelElements))
  for (std::size_t i = 0; i < all; ++i) body(position(dimensions, i));
}

Dimension take(Dimensions& dimensions, Dimensions::iterator which) {
  const Dimension taken = *which;
  dimensions.erase(which);
  return taken;
}

// Moves a matrix with contiguous rows in one tensor and contiguous columns in the other, tile by tile.
template <bool add>
void move_matrix(const Dimension& a, const Dimension& b, const float* from, float* to) {
  constexpr std::size_t kTile = 16;
  for (std::size_t a_begin = 0; a_begin < a.size; a_begin += kTile)
    for (std::size_t b_begin = 0; b_begin < b.size; b_begin += kTile)
      for (std::size_t j = b_begin; j < std::min(b_begin + kTile, b.size); ++j)
        for (std::size_t i = a_begin; i < std::min(a_begin + kTile, a.size); ++i) {
          float& target = to[i * a.to + j * b.to];
          target = (add ? target : 0) + from[i * a.from + j * b.from];
        }
}

template <bool add>
void move_rows(Dimensions rest, const float* from, float* to) {
  if (rest.empty()) rest.push_back({1, 1, 1});
  const auto last = std::ranges::find(rest, std::size_t{1}, &Dimension::to);
  const Dimension row = take(rest, last == rest.end() ? rest.end() - 1 : last);
  const auto contiguous = std::ranges::find(rest, std::size_t{1}, &Dimension::from);
  if (row.from > 1 && contiguous != rest.end()) {
    const Dimension column = take(rest, contiguous);
    return for_each_position(rest, row.size * column.size,
                             [=](const Position& at) { move_matrix<add>(row, column, from + at.from, to + at.to); });
  }
  for_each_position(rest, row.size, [=](const Position& at) {
    const float* source = from + at.from;
    float* target = to + at.to;
    if (row.from == 1 && row.to == 1)
      for (std::size_t i = 0; i < row.size; ++i) target[i] = (add ? target[i] : 0) + source[i];
    else
      for (std::size_t i = 0; i < row.size; ++i)
        target[i * row.to] = (add ? target[i * row.to] : 0) + source[i * row.from];
  });
}

// Sums `reduced` for a row of results, which are neighbours in both tensors.
template <bool add>
void sum_row(const Dimensions& reduced, std::size_t size, const float* from, float* to) {
  if (!add) std::fill_n(to, size, 0.0f);
  const std::size_t all = count(reduced);
  for (std::size_t r = 0; r < all; ++r) {
    const float* source = from + position(reduced, r).from;
    for (std::size_t i = 0; i < size; ++i) to[i] += source[i];
  }
}

template <bool add>
void sum_one(const Dimensions& outer, const Dimension& inner, const float* from, float* to) {
  double sum = 0;
  const std::size_t all = count(outer);
  for (std::size_t r = 0; r < all; ++r) {
    const float* source = from + position(outer, r).from;
    float part = 0;
#pragma omp simd reduction(+ : part)
    for (std::size_t i = 0; i < inner.size; ++i) part += source[i * inner.from];
    sum += static_cast<double>(part);
  }
  *to = (add ? *to : 0) + static_cast<float>(sum);
}

template <bool add>
void sum(const Dimensions& all, const float* from, float* to) {
  Dimensions kept, reduced;
  for (const Dimension& d : all) (d.to == 0 ? reduced : kept).push_back(d);
  if (!kept.empty() && kept.back().from == 1 && kept.back().to == 1) {
    // Rows in parts, so that all threads have work although there are few rows.
    constexpr std::size_t kPart = 64;
    const std::size_t size = kept.back().size, parts = (size + kPart - 1) / kPart;
    kept.pop_back();
    return for_each_position(kept, size * count(reduced), [&](const Position& at) {
#pragma omp parallel for schedule(static) if (kept.empty())
      for (std::size_t part = 0; part < parts; ++part)
        sum_row<add>(reduced, std::min(kPart, size - part * kPart), from + at.from + part * kPart,
                     to + at.to + part * kPart);
    });
  }
  if (reduced.empty()) reduced.push_back({1, 1, 0});
  const auto smallest = std::ranges::min_element(reduced, {}, &Dimension::from);
  const Dimension inner = take(reduced, smallest);
  for_each_position(kept, inner.size * count(reduced),
                    [&](const Position& at) { sum_one<add>(reduced, inner, from + at.from, to + at.to); });
}

}  // namespace

Strides row_major_strides(const Shape& shape) {
  Strides strides(shape.size(), 1);
  for (std::size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * shape[i];
  return strides;
}

void move_elements(const Walk& walk, const float* from, float* to, bool add) {
  add ? move_rows<true>(joined(walk), from, to) : move_rows<false>(joined(walk), from, to);
}

void sum_elements(const Walk& walk, const float* from, float* to, bool add) {
  add ? sum<true>(joined(walk), from, to) : sum<false>(joined(walk), from, to);
}

}  // namespace annulus::cpu
