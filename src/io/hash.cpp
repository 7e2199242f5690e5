#include "src/io/hash.h"

#include <fmt/format.h>

// Compiled here, for this processor's vectors: libxxhash's own functions use the narrowest.
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace annulus {

std::uint64_t hash_bytes(std::span<const std::byte> bytes, std::uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

struct Hash::State {
  XXH3_state_t xxh3;
};

void Hash::Free::operator()(State* state) const {
  delete state;
}

Hash::Hash() : state_(new State{}) {
  XXH3_64bits_reset(&state_->xxh3);
}

void Hash::add_bytes(std::span<const std::byte> bytes) {
  XXH3_64bits_update(&state_->xxh3, bytes.data(), bytes.size());
}

std::uint64_t Hash::value() const {
  return XXH3_64bits_digest(&state_->xxh3);
}

std::string Hash::text() const {
  return fmt::format("{:016x}", value());
}

}  // namespace annulus
