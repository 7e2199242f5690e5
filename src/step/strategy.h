#pragma once

#include <variant>

#include "src/step/round_options.h"

namespace annulus {

// How ranks share the updates of a synchronous step.
enum class Strategy { synchronous, sharded };

// What makes a step; see make_step().
using StepStrategy = std::variant<Strategy, LocalRounds, AsyncRounds>;

}  // namespace annulus
