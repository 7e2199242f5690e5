#pragma once

#include <fmt/format.h>
#include <xxhash.h>

#include <memory>
#include <span>
#include <string>

namespace annulus {

// An incremental hash (XXH3, 64 bits).
class Hash {
 public:
  template <class T>
  void add(std::span<const T> values) {
    XXH3_64bits_update(state_.get(), values.data(), values.size_bytes());
  }
  std::uint64_t value() const { return XXH3_64bits_digest(state_.get()); }
  std::string text() const { return fmt::format("{:016x}", value()); }

 private:
  struct Free {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  static XXH3_state_t* make() {
    XXH3_state_t* state = XXH3_createState();
    XXH3_64bits_reset(state);
    return state;
  }
  std::unique_ptr<XXH3_state_t, Free> state_{make()};
};

}  // namespace annulus
