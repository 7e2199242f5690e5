#pragma once

#include <memory>
#include <string>

#include "collectives/all_reduce.h"

namespace annulus {

// Returns whether the MPI library reports support for addresses of GPU memory. Not every library can be asked.
bool mpi_takes_gpu_memory();

// The ring of ring.h over messages between GPU memories. REQUIRES: an MPI library that supports addresses of GPU
// memory. A host thread drives it, and waits until the GPU has added, and converted to 16 bits if `wire` is bf16 or
// fp16, before it sends the sum on. Collective over the world.
std::unique_ptr<AllReduce> make_gpu_message_ring(const World& world, Device& device, WireType wire, std::string why);

}  // namespace annulus
