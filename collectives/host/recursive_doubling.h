#pragma once

#include <bit>
#include <memory>
#include <span>
#include <vector>

#include "collectives/all_reduce_algorithm.h"
#include "collectives/wire_type.h"
#include "collectives/world/all_reduce_context.h"
#include "collectives/world/world.h"

namespace annulus {

// Recursive doubling, for small arrays: log2(N) exchanges of the whole array, while a ring exchanges 2(N-1) small
// pieces. In round k a rank exchanges with the rank whose number differs in bit k, and both add:
//
//    rank         0      1      2      3
//    round 0      01     01     23     23        with the neighbour
//    round 1      0123   0123   0123   0123      with the rank two away
//
// If N is not a power of two, each rank beyond the largest power first sends the array to a rank below, and gets the
// sum at the end. Addition is commutative, so both sides have the same bits after an exchange, and thus all ranks do.
// Values that travel in 16 bits are first rounded in place, so that both sides add the same numbers. (Thakur,
// Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH", 2005.)
class RecursiveDoubling final : public AllReduceAlgorithm {
 public:
  RecursiveDoubling(const World& world, WireType wire, std::shared_ptr<AllReduceContext> context);

  void run(std::span<float> values, const Collective& collective) override;
  std::uint64_t bytes_sent() const override { return bytes_sent_; }

 private:
  void exchange(std::span<float> values, int with);
  void send(std::span<float> values, int to);
  std::span<const float> receive(std::size_t count, int from);  // valid until the next call

  MPI_Request start_sending(std::span<float> values, int to);  // rounds `values` to the wire format
  MPI_Request start_receiving(std::size_t count, int from);
  std::span<const float> arrived(std::size_t count);
  void wait(std::span<MPI_Request> requests, int peer);

  Channel channel_;
  WireType wire_;
  int rank_, size_;
  std::vector<int> ranks_in_job_;
  int power_;              // the largest power of two up to size_
  bool stands_in_;         // for a rank beyond power_, whose array it handles
  std::size_t exchanges_;  // this rank's number per all-reduce
  std::size_t exchange_ = 0;
  HostArray<float> arrived_;
  HostArray<std::byte> coded_sent_, coded_arrived_;
  std::uint64_t bytes_sent_ = 0;
};

// Returns how many exchanges a rank makes in an all-reduce, in sequence; rank 0 makes the most.
constexpr std::size_t doubling_exchanges(std::size_t rank, std::size_t size) {
  const std::size_t power = std::bit_floor(size);
  if (rank >= power) return 2;
  return static_cast<std::size_t>(std::countr_zero(power)) + (rank + power < size ? 2 : 0);
}

}  // namespace annulus
