#include "kernels/base/exact_sum.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "tests/unit/random_values.h"

namespace annulus {
namespace {

double square(float value) {
  return static_cast<double>(value) * value;
}

// Squares of float32 numbers of all magnitudes.
std::vector<double> squares(std::size_t count) {
  std::vector<double> all;
  for (const float value : test::random_values(count, 1))
    all.push_back(square(std::ldexp(value, static_cast<int>(mix(all.size()) % 250) - 125)));
  return all;
}

double sum(const std::vector<double>& terms) {
  ExactSum sum;
  for (std::size_t begin = 0; begin < terms.size(); begin += 64)
    sum.add(std::span(terms).subspan(begin, std::min<std::size_t>(64, terms.size() - begin)));
  return sum.value();
}

}  // namespace

TEST_CASE("an exact sum loses no term, whatever its magnitude") {
  CHECK(ExactSum{}.value() == 0);
  CHECK(sum({0, 0.25, 3}) == 3.25);
  constexpr float largest = std::numeric_limits<float>::max(), smallest = std::numeric_limits<float>::denorm_min();
  CHECK(sum({square(largest)}) == square(largest));
  CHECK(sum({16 * square(largest), square(smallest)}) == 16 * square(largest));
  CHECK(sum({square(smallest)}) == square(smallest));
  CHECK(sum({1, std::ldexp(1.0, -53), std::ldexp(1.0, -53)}) == 1 + std::ldexp(1.0, -52));
  CHECK(sum(std::vector<double>(3'000'000, 0.1)) == 3'000'000 * static_cast<double>(0.1L));
}

TEST_CASE("an exact sum does not depend on the order, nor on the parts in which it is made") {
  std::vector<double> terms = squares(5000);
  const double expected = sum(terms);
  CHECK(expected > 0);
  std::ranges::sort(terms);
  CHECK(sum(terms) == expected);
  std::ranges::reverse(terms);
  CHECK(sum(terms) == expected);
  for (const std::size_t parts : {2u, 3u, 7u, 1000u}) {
    CAPTURE(parts);
    std::vector<ExactSum> sums(parts);
    for (std::size_t i = 0; i < terms.size(); ++i) sums[mix(i) % parts].add({&terms[i], 1});
    ExactSum together, all_reduced;
    std::vector<float> digits(ExactSum::kDigits), sum_of_digits(ExactSum::kDigits);
    for (const ExactSum& part : sums) {
      together += part;
      part.write(ExactSum::Digits(digits));
      for (std::size_t i = 0; i < digits.size(); ++i) sum_of_digits[i] += digits[i];
    }
    all_reduced.read(ExactSum::Digits(sum_of_digits));
    CHECK(together.value() == expected);
    CHECK(all_reduced.value() == expected);
  }
}

TEST_CASE("an exact sum of terms that are not finite is not finite") {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  CHECK(sum({1, infinity, 1}) == infinity);
  CHECK(std::isnan(sum({1, std::numeric_limits<double>::quiet_NaN(), infinity})));
  ExactSum one, read;
  one.add({&infinity, 1});
  std::vector<float> digits(ExactSum::kDigits);
  one.write(ExactSum::Digits(digits));
  read.read(ExactSum::Digits(digits));
  CHECK(read.value() == infinity);
}

}  // namespace annulus
