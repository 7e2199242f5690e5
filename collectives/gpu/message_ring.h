#pragma once

#include <memory>
#include <string>

#include "collectives/all_reduce.h"

namespace annulus {

// Returns whether the MPI library reports support for GPU memory addresses. Not every library can be asked.
bool mpi_takes_gpu_memory();

// The ring of ring.h over messages between GPU memories. REQUIRES: an MPI library that supports GPU memory addresses. A
// host thread drives the ring; before it sends a sum on, it waits until the GPU has added, and converted to 16 bits if
// `wire` is bf16 or fp16. Collective over the world.
std::unique_ptr<AllReduce> make_gpu_message_ring(const World& world, Device& device, WireType wire, std::string why);

}  // namespace annulus
