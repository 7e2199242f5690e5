#include "kernels/cpu/loops/add_hash.h"

#include <immintrin.h>

#include <cstddef>
#include <cstring>

namespace annulus::cpu {
namespace {

constexpr std::size_t kLanes = 4;
typedef std::uint64_t Words __attribute__((vector_size(kLanes * sizeof(std::uint64_t))));

// Returns the products of lower and upper halves.
Words product_of_halves(const Words& words) {
#ifdef __AVX2__
  return reinterpret_cast<Words>(
      _mm256_mul_epu32(reinterpret_cast<__m256i>(words), reinterpret_cast<__m256i>(words >> 32)));
#else
  return (words & UINT32_MAX) * (words >> 32);
#endif
}

struct Sums {
  Words words{}, products{};

  void add(const Words& word, const Words& key) {
    words += word;
    products += product_of_halves(word ^ key);
  }
};

// Returns the next values as words; beyond the end there are zeros, and their keys are removed from `key`, so that they
// add nothing.
Words last_words(std::span<const float> values, Words& key) {
  Words words{};
  std::memcpy(&words, values.data(), values.size_bytes());
  for (std::size_t lane = (values.size() + 1) / 2; lane < kLanes; ++lane) key[lane] = 0;
  return words;
}

}  // namespace

void add_hash(std::span<const float> values, ArrayHash& to) {
  constexpr std::size_t kFloats = 2 * kLanes;
  Words key;
  for (std::size_t lane = 0; lane < kLanes; ++lane) key[lane] = (lane + 1) * ArrayHash::kKey;
  Sums sums;
  for (; values.size() >= kFloats; values = values.subspan(kFloats)) {
    Words words;
    std::memcpy(&words, values.data(), sizeof words);
    sums.add(words, key);
    key += kLanes * ArrayHash::kKey;
  }
  if (!values.empty()) {
    const Words words = last_words(values, key);
    sums.add(words, key);
  }
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    to.words += sums.words[lane];
    to.products += sums.products[lane];
  }
}

}  // namespace annulus::cpu
