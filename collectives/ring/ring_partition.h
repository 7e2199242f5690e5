#pragma once

#include <algorithm>
#include <cstddef>

#include "collectives/ring/ring_schedule.h"
#include "kernels/base/host_memory.h"
#include "kernels/base/split.h"

namespace annulus {

// How the ring cuts an array, and the exchanges that send it, as pure arithmetic. ring.h explains both.

struct RingOptions {
  std::size_t segment_bytes = 256 * 1024;  // maximum, at least a line; a segment and its copies should fit the cache
  std::size_t in_flight = 4;               // exchanges on the wire at a time
};

// Options for MPI messages. Between nodes a segment is a message that MPI sends eagerly, without asking the receiver
// first (Open MPI's eager limit for TCP is 64 KiB with the header): four hosts at 1 Gbit/s then reach 98 % of a TCP
// stream's throughput, and 90 % with 512 KiB segments, which wait for the receiver's answer. Within a node a segment is
// a copy, and large copies cost less.
constexpr RingOptions message_ring_options(bool one_node) {
  if (one_node) return {.segment_bytes = 512 * 1024, .in_flight = 8};
  return {.segment_bytes = 65'408, .in_flight = 16};
}

// A segment that is sent to rank + 1 while another is received from rank - 1, as array ranges, in floats.
struct RingExchange {
  Range send, receive;
  std::size_t step;
  bool adds;      // received data is added; else it replaces the old
  bool complete;  // the sent chunk is complete: this rank was the last to add to it
};

// The partition of `count` floats on `ranks` ranks; the same on every rank.
struct RingPartition {
  static constexpr std::size_t kLine = kCacheLine / sizeof(float);  // in floats; a line is never cut

  std::size_t count, ranks;
  std::size_t segments;   // per chunk
  std::size_t exchanges;  // segments times the steps of the reduce-scatter and the all-gather
  std::size_t window;     // exchanges that may be in flight

  RingPartition(std::size_t count_, std::size_t ranks_, const RingOptions& options) : count(count_), ranks(ranks_) {
    const std::size_t per_segment = options.segment_bytes / sizeof(float) / kLine * kLine;
    segments = std::max<std::size_t>(1, (chunk(0).size() + per_segment - 1) / per_segment);
    exchanges = 2 * (ranks - 1) * segments;
    window = std::min(segments, options.in_flight);
  }

  // Also used by algorithms that add in ring order without being a ring: SharedMemoryAllReduce and the model.
  static constexpr Range chunk_of(std::size_t count, std::size_t ranks, std::size_t number) {
    return split_blocks(count, kLine, ranks, number);
  }
  Range chunk(std::size_t number) const { return chunk_of(count, ranks, number); }
  // Chunk 0 and segment 0 are the largest.
  Range segment(std::size_t of_chunk, std::size_t number) const {
    const Range whole = chunk(of_chunk);
    const Range part = split_blocks(whole.size(), kLine, segments, number);
    return {whole.begin + part.begin, whole.begin + part.end};
  }

  RingExchange exchange(std::size_t rank, std::size_t number) const {
    const std::size_t step = number / segments, scatter_steps = ranks - 1;
    const bool adds = step < scatter_steps;
    const RingStep chunks = adds ? reduce_scatter(rank, ranks)[step] : all_gather(rank, ranks)[step - scatter_steps];
    return {.send = segment(chunks.send, number % segments),
            .receive = segment(chunks.receive, number % segments),
            .step = step,
            .adds = adds,
            .complete = step == scatter_steps};
  }
};

}  // namespace annulus
