#pragma once

namespace annulus {

// Throws Error if this process may open too few files (ulimit -n) or use too little memory (ulimit -v) to start MPI,
// because MPI libraries would crash or report something else.
void require_room_to_start();

}  // namespace annulus
