#pragma once

#include <cstddef>
#include <optional>
#include <span>

namespace annulus {

// Returns the product of sizes read from a file; none if it does not fit into std::size_t.
inline std::optional<std::size_t> checked_product(std::span<const std::size_t> factors, std::size_t product = 1) {
  for (const std::size_t factor : factors)
    if (__builtin_mul_overflow(product, factor, &product)) return std::nullopt;
  return product;
}

}  // namespace annulus
