#include "kernels/base/array_hash.h"

#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <cstring>

#include "tests/unit/random_values.h"
#include "tests/unit/test_device.h"

namespace annulus {
namespace {

using Words = std::vector<std::uint32_t>;

Words random_words(std::size_t size) {
  Words words(size);
  const std::vector<float> values = test::random_values(size, 1);
  std::ranges::transform(values, words.begin(), [](float value) { return std::bit_cast<std::uint32_t>(value); });
  return words;
}

ArrayHash naive(const Words& values, ArrayHash hash = {}) {
  for (std::size_t i = 0; i < values.size(); i += 2) {
    const std::uint64_t word = values[i] + (i + 1 < values.size() ? std::uint64_t{values[i + 1]} << 32 : 0);
    const std::uint64_t mixed = word ^ ((i / 2 + 1) * ArrayHash::kKey);
    hash.words += word;
    hash.products += (mixed >> 32) * (mixed % (std::uint64_t{1} << 32));
  }
  return hash;
}

struct Hashed {
  explicit Hashed(std::size_t size) : array(device->allocate(std::max<std::size_t>(size, 1) * sizeof(float))) {}

  ArrayHash hash(const Words& words, ArrayHash before = {}) {
    device->upload(std::as_bytes(std::span(words)), array.view());
    device->upload(std::as_bytes(std::span(&before, 1)), to.view());
    device->add_hash(array.view().slice(0, words.size() * sizeof(float)), to.view());
    ArrayHash found;
    device->download(to.view(), std::as_writable_bytes(std::span(&found, 1)));
    return found;
  }

  std::unique_ptr<Device> device = test::make_device(1);
  Buffer array, to = device->allocate(sizeof(ArrayHash));
};

}  // namespace

TEST_CASE("a hash of an array is the same on every device") {
  const std::size_t size = GENERATE(0, 1, 2, 3, 4, 5, 7, 8, 1023, 4096, 50'001);
  CAPTURE(size);
  Hashed hashed(size);
  const Words words = random_words(size);
  CHECK(hashed.hash(words) == naive(words));
  constexpr ArrayHash kBefore{~std::uint64_t{0} - 5, 7};  // overflows
  CHECK(hashed.hash(words, kBefore) == naive(words, kBefore));
}

TEST_CASE("any flipped bit, and values that change places, change the hash") {
  constexpr std::size_t kSize = 37;
  Hashed hashed(kSize);
  Words words = random_words(kSize);
  const ArrayHash whole = hashed.hash(words);
  for (std::size_t element = 0; element < kSize; ++element)
    for (int bit = 0; bit < 32; ++bit) {
      words[element] ^= std::uint32_t{1} << bit;
      CHECK_FALSE(hashed.hash(words).words == whole.words);
      words[element] ^= std::uint32_t{1} << bit;
    }
  for (const std::size_t other : {1u, 2u, 3u, 36u}) {
    std::swap(words[0], words[other]);
    CHECK_FALSE(hashed.hash(words).products == whole.products);
    std::swap(words[0], words[other]);
  }
}

}  // namespace annulus
