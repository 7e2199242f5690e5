#pragma once

#include <memory>

#include "collectives/all_reduce.h"
#include "collectives/host/host_all_reduce.h"

namespace annulus {

// All-reduces arrays in GPU memory by a host algorithm: they are staged through host memory, piece by piece.
//
//    device's lane      ... backward ... | next layers' backward ...
//    copies to host                      | piece 0 | piece 1 | piece 2 |
//    worker thread                                 | sum 0   | sum 1   | sum 2   |
//    copies back                                             | piece 0 | piece 1 | piece 2 |
//
// All of an array's copies to the host are queued together, after the lane's work so far; the worker sums pieces as
// they arrive. Every array in allocate()'s memory has a separate place in pinned memory that belongs to the host
// algorithm: only the GPU copies to and from it, and nobody waits for a place. An array's place is used again when it
// is enqueued again, and by then the previous all-reduce has been waited for. Other arrays take turns in a scratch.
struct StagedOptions {
  std::size_t piece_bytes = 1 << 20;  // not measured yet
};

// `device` must outlive it.
std::unique_ptr<AllReduce> make_staged(Device& device, HostAllReduce host, StagedOptions options = {});

}  // namespace annulus
