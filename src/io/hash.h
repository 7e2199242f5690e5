#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace annulus {

// Returns a hash of bytes (XXH3, 64 bits).
std::uint64_t hash_bytes(std::span<const std::byte> bytes, std::uint64_t seed = 0);

// The same hash of values that are added in sequence.
class Hash {
 public:
  Hash();

  template <class T>
  void add(std::span<const T> values) {
    add_bytes(std::as_bytes(values));
  }
  std::uint64_t value() const;
  std::string text() const;  // 16 hexadecimal digits

 private:
  struct State;
  struct Free {
    void operator()(State* state) const;
  };

  void add_bytes(std::span<const std::byte> bytes);

  std::unique_ptr<State, Free> state_;
};

}  // namespace annulus
