#pragma once

#include <memory>
#include <string>

#include "collectives/all_reduce.h"

namespace annulus {

// Whether the MPI library says that it takes addresses of GPU memory. Not every one can be asked.
bool mpi_takes_gpu_memory();

// The ring of ring.h over messages from GPU memory to GPU memory, for an MPI library that takes its addresses. A thread
// of the host's drives it, and waits until the GPU has added before it sends the sum on. Collective over the world.
std::unique_ptr<AllReduce> make_gpu_message_ring(const World& world, Device& device, std::string why);

}  // namespace annulus
