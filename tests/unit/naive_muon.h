#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/update.h"

// Muon's orthogonal matrices in double precision.
namespace annulus::test {

struct Matrix {
  std::size_t rows, columns;
  std::vector<double> values = std::vector<double>(rows * columns);

  double& at(std::size_t i, std::size_t j) { return values[i * columns + j]; }
  double at(std::size_t i, std::size_t j) const { return values[i * columns + j]; }
};

inline Matrix transposed(const Matrix& m) {
  Matrix result{m.columns, m.rows};
  for (std::size_t i = 0; i < m.rows; ++i)
    for (std::size_t j = 0; j < m.columns; ++j) result.at(j, i) = m.at(i, j);
  return result;
}

inline Matrix product(const Matrix& a, const Matrix& b) {
  Matrix result{a.rows, b.columns};
  for (std::size_t i = 0; i < a.rows; ++i)
    for (std::size_t k = 0; k < a.columns; ++k)
      for (std::size_t j = 0; j < b.columns; ++j) result.at(i, j) += a.at(i, k) * b.at(k, j);
  return result;
}

// The iteration of kernels/update.h, always on rows.
inline Matrix naive_orthogonal(const Muon& rule, Matrix x) {
  double squares = 0;
  for (const double value : x.values) squares += value * value;
  for (double& value : x.values) value /= std::max(std::sqrt(squares), 1e-7);
  for (const auto& [a, b, c] : orthogonalizing_steps(rule)) {
    const Matrix squared = product(x, transposed(x)), cubed = product(squared, x), last = product(squared, cubed);
    for (std::size_t i = 0; i < x.values.size(); ++i)
      x.values[i] = a * x.values[i] + b * cubed.values[i] + c * last.values[i];
  }
  return x;
}

}  // namespace annulus::test
