#pragma once

#include "kernels/tensor.h"

namespace annulus {

// Zeroed memory of this process, aligned for any use; large ones lie on huge pages where the system has them. Throws
// Error where there is not so much.
Buffer allocate_host(std::size_t bytes);

}  // namespace annulus
