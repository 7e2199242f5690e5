#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "collectives/world/world.h"

namespace annulus {

// What all ranks must have alike, compared once at the start. The ranks never negotiate later on: where one of them
// computes something else, sums of gradients would hang, or worse, be wrong.
class Agreement {
 public:
  explicit Agreement(const World& world) : world_(world) {}

  // The same fields in the same order on every rank of this version of the program.
  template <class T>
  void add(std::string field, const T& value) {
    fields_.push_back({std::move(field), fmt::format("{}", value)});
  }

  // Throws Error on every rank where one differs from rank 0, naming the first field in which it does, the ranks, and
  // what they have where that is short. Collective: one exchange of eight bytes, where all agree.
  void check() const;

 private:
  struct Field {
    std::string name, value;
  };

  [[noreturn]] void report(const Field& field) const;

  const World& world_;
  std::vector<Field> fields_;
};

}  // namespace annulus
