#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "collectives/all_reduce_algorithm.h"
#include "collectives/ring/ring_link.h"
#include "collectives/ring/ring_memory.h"
#include "collectives/ring/ring_partition.h"
#include "collectives/world/all_reduce_context.h"

namespace annulus {

// The ring all-reduce
// ===================
//
// The ranks stand in a ring. Each sends only to the next rank and receives only from the previous, all at the same
// time, so that every wire is busy and none is shared:
//
//              .-----> rank 1 ------.
//              |                    v
//            rank 0               rank 2
//              ^                    |
//              '------ rank 3 <-----'
//
// An array is cut into a chunk per rank. Four ranks a, b, c, d have four chunks each; a1 is rank a's share of chunk 1,
// and bc1 means b1 + c1.
//
// Reduce-scatter: chunk n starts at rank n, goes round the ring and collects a share at every rank. A rank adds what
// arrives to its own share (marked *), and sends that in the next step.
//
//                    chunk 0   chunk 1   chunk 2   chunk 3
//    start   rank a    a0        a1        a2        a3        a sends chunk 0, b 1, c 2, d 3
//            rank b    b0        b1        b2        b3
//            rank c    c0        c1        c2        c3
//            rank d    d0        d1        d2        d3
//
//    step 1  rank a    a0        a1        a2        da3 *     a sends chunk 3, b 0, c 1, d 2
//            rank b    ab0 *     b1        b2        b3
//            rank c    c0        bc1 *     c2        c3
//            rank d    d0        d1        cd2 *     d3
//
//    step 2  rank a    a0        a1        cda2 *    da3       a sends chunk 2, b 3, c 0, d 1
//            rank b    ab0       b1        b2        dab3 *
//            rank c    abc0 *    bc1       c2        c3
//            rank d    d0        bcd1 *    cd2       d3
//
//    step 3  rank a    a0        bcda1 *   cda2      da3       every rank has a complete chunk
//            rank b    ab0       b1        cdab2 *   dab3
//            rank c    abc0      bc1       c2        dabc3 *
//            rank d    abcd0 *   bcd1      cd2       d3
//
// All-gather: the complete chunks go round in the same way, three more steps, and replace what they find. Each chunk
// was added up along a single path, rank after rank, so all ranks end with the same bits.
//
// As a textbook would write it (ring_schedule.h has the two schedules):
//
//    for (RingStep step : reduce_scatter(rank, size)) { send(chunk(step.send)); chunk(step.receive) += receive(); }
//    for (RingStep step : all_gather(rank, size))     { send(chunk(step.send)); chunk(step.receive)  = receive(); }
//
// Cost, for N ranks and n bytes: 2(N-1) steps; in each, every rank sends n/N bytes. In total a rank sends
//
//                        N - 1
//                    2 * ----- * n   bytes,
//                          N
//
// less than 2n however many ranks there are, and no algorithm sends less (Patarasuk and Yuan 2009). The price is 2(N-1)
// latencies in sequence: for small arrays on many ranks a tree is faster.
//
// Segments
// --------
// Written like that, the wire rests while a rank adds. So every chunk is cut into S segments, and a step into S
// exchanges that follow each other on the wire:
//
//    exchange     0     1    ...   S-1  |   S    S+1   ...  2S-1  |  2S   ...
//    step         0     0           0   |   1     1           1   |   2
//    segment      0     1          S-1  |   0     1          S-1  |   0
//
// What exchange e sends, exchange e - S has received and added. So up to S exchanges may be in flight while the ring
// adds what came before them; `in_flight` bounds them, and with them the scratch memory.
//
// Chunks and segments are whole cache lines, except at the array's end. A copy by the kernel (such as a message between
// two ranks on a node) to an address within a line takes two to three times as long on some processors (AMD Zen 3's
// `rep movsb`).
//
// ring_partition.h computes both, ring_seconds() (all_reduce_model.h) the time that follows from a link's latency
// and bandwidth.
//
// Messages that round
// -------------------
// If messages round, the complete chunk is rounded before it is copied to all, so that all ranks have the same bits. A
// reduce-scatter alone rounds the complete chunk, too. An all-gather alone rounds nothing, because values such as
// weights may need every bit.
class Ring final : public AllReduceAlgorithm {
 public:
  // `context`: the link's; the ring records the current step in it. `memory`: where the arrays are.
  Ring(std::unique_ptr<RingLink> link, std::size_t rank, std::size_t size, std::shared_ptr<AllReduceContext> context,
       RingOptions options = {}, std::unique_ptr<RingMemory> memory = std::make_unique<HostRingMemory>());

  void run(std::span<float> values, const Collective& collective) override;
  Range chunk(std::size_t count) const override { return RingPartition::chunk_of(count, size_, (rank_ + 1) % size_); }
  std::span<std::byte> allocate(std::size_t bytes, Memory memory) override;
  std::string way() const override { return elsewhere_ ? "through copies, because /dev/shm has too little space" : ""; }
  std::uint64_t bytes_sent() const override { return bytes_sent_; }

 private:
  void run_phases(RingLink& link, std::span<float> values, std::size_t first_phase, std::size_t end_phase);
  std::span<float> slot(const RingPartition& cut, std::size_t number);
  void post(RingLink& link, std::span<float> values, const RingExchange& exchange, std::span<float> slot);
  void collect(RingLink& link, std::span<float> values, const RingExchange& exchange);

  std::unique_ptr<RingMemory> memory_;  // outlives the link, which may still write to this memory's scratch
  std::unique_ptr<RingLink> link_;
  std::size_t rank_, size_;
  RingOptions options_;
  std::uint64_t bytes_sent_ = 0;
  bool elsewhere_ = false;  // whether allocate() found too little shared memory
};

}  // namespace annulus
