#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "collectives/world/world.h"

namespace annulus {

// Values that must be the same on all ranks, compared once at the start. The ranks never negotiate later: if a rank
// computed something else, all-reduces would hang or, worse, give wrong results.
class Agreement {
 public:
  explicit Agreement(const World& world) : world_(world) {}

  // REQUIRES: every rank with this program version adds the same fields in the same order.
  template <class T>
  void add(std::string field, const T& value) {
    fields_.push_back({std::move(field), fmt::format("{}", value)});
  }

  // Throws Error on every rank if any rank differs from rank 0, naming the first differing field, the ranks, and their
  // values if these are short. Collective: an exchange of eight bytes if all agree.
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
