#pragma once

#include <sched.h>

#include <string>
#include <vector>

namespace annulus {

// Returns the processors that this process could use if the launcher had not bound it.
cpu_set_t processors_if_unbound();

// Returns a warning if a launcher bound ranks to the same processors although a node has others, which `unbound` may
// use; else empty. `masks`: each rank's affinity mask. `mpi`: the MPI library, to name the option that helps.
std::string binding_warning(const std::vector<cpu_set_t>& masks, const cpu_set_t& unbound, const std::string& mpi);

}  // namespace annulus
