#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "collectives/world/world.h"
#include "models/parameters/parameters.h"

namespace annulus {

// Skips the updates of steps in which a rank's gradients are not finite, at most some in a row (--skip-not-finite).
class SkippedUpdates {
 public:
  // `most`: in a row. `report`: called on rank 0 with a line for the user. All references must outlive this.
  SkippedUpdates(const World& world, const Parameters& parameters, std::size_t most,
                 std::function<void(const std::string&)> report)
      : world_(world), parameters_(parameters), most_(most), report_(std::move(report)) {}

  // Returns whether all ranks update. `not_finite`: the first parameter with a gradient of this rank that is not
  // finite; null: none. Throws Error on all ranks if too many steps in a row were skipped. Collective.
  bool accept(std::uint64_t step, const Parameter* not_finite);

 private:
  const World& world_;
  const Parameters& parameters_;
  const std::size_t most_;
  const std::function<void(const std::string&)> report_;
  std::size_t in_a_row_ = 0;
};

}  // namespace annulus
