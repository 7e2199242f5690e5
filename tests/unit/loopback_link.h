#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "collectives/ring/ring_link.h"

namespace annulus {

// A ring inside one process, for ranks that are threads: tests and simulations need neither MPI nor processes.
// Element r is rank r's link, used by that rank's thread. A link that is destroyed makes its neighbours' calls throw.
//
// A sender's bytes are read when the receiver collects them, and only then is the sender's exchange complete: the
// latest moment that RingLink's contract allows, so that memory reused too early is detected.
enum class LoopbackDelivery { into_landing, into_memory_of_the_link };
std::vector<std::unique_ptr<RingLink>> loopback_ring(std::size_t size, LoopbackDelivery delivery);

}  // namespace annulus
