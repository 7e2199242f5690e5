#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include "collectives/world/backoff.h"
#include "collectives/world/carrier.h"
#include "collectives/world/shared_counter.h"

namespace annulus {

// Passes bytes from every rank to all ranks, in rank order. Throws Error.
using Exchange = std::function<void(std::span<const std::byte> own, std::span<std::byte> all)>;

// Carries the messages between processes on a single node that MPI did not start: through a pipe in shared memory from
// each rank to each other rank. One thread at a time may send or receive, and all channels must be used in the same
// order on all ranks. Requests are complete immediately: a receive waits for the message, and a send waits only while
// the pipe is full.
class NodeCarrier final : public Carrier {
 public:
  // Collective. Throws Error on all ranks if they are on several nodes, or cannot share memory.
  NodeCarrier(int rank, int size, const Exchange& exchange);
  ~NodeCarrier() override;
  NodeCarrier(const NodeCarrier&) = delete;
  NodeCarrier& operator=(const NodeCarrier&) = delete;

  void start_sending(std::span<const std::byte> bytes, int to, int context, MPI_Request& request) const override;
  void start_receiving(std::span<std::byte> bytes, int from, int context, MPI_Request& request) const override;
  bool test(MPI_Request&, MPI_Status*) const override { return true; }
  void give_up(std::span<MPI_Request>) const override {}
  void withdraw(std::span<MPI_Request>) const override {}
  int largest_context() const override;
  Communicator communicator_of(std::span<const int> ranks, int context) const override;  // throws Error

 private:
  // The counters count bytes, and may wrap around.
  struct Pipe {
    static constexpr std::uint32_t kBytes = 1024;
    SharedCounter written, read;
    std::byte bytes[kBytes];
  };
  struct Header {
    int context;
    std::uint32_t bytes;
  };

  Pipe& pipe(int from, int to) const { return pipes_[from * size() + to]; }
  void write(std::span<const std::byte> bytes, Pipe& pipe) const;
  void read(std::span<std::byte> bytes, Pipe& pipe) const;

  const Backoff backoff_;
  Pipe* pipes_ = nullptr;  // from each rank to each
  std::size_t mapped_bytes_ = 0;
};

}  // namespace annulus
