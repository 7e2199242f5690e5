#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "collectives/gpu/peer_memory.h"
#include "collectives/gpu/stream_algorithm.h"
#include "collectives/world/shared_memory.h"
#include "collectives/world/world.h"

namespace annulus {

// The base of all-reduces between GPUs that can access each other's memory: memory that the node's other ranks have
// mapped, a scratch for arrays elsewhere, and how a rank leaves while peers may still wait for it.
class PeerAllReduce : public StreamAlgorithm {
 public:
  // Runs of floats that are never cut, for the sake of copy engines and kernels.
  static constexpr std::size_t kLine = 256 / sizeof(float);
  static constexpr double kPatience = 10;  // seconds that a first all-reduce may take

  ~PeerAllReduce() override;

  void end_waits() noexcept override;
  void put(DeviceView values, Verb verb) override;
  DeviceView allocate(std::size_t bytes) override;
  void expect_all_there() override;

  // Runs a first small all-reduce, to verify that the mapped memory can be used and that the ranks' streams wake each
  // other. Collective; throws Error on all ranks if it fails.
  void try_out();
  // Returns the time of an all-reduce that fills the scratch; the same on every rank. Collective; throws Error on all
  // ranks if it fails on any, after waiting `patience` seconds for the failing rank.
  double measure(double patience = kPatience);

 protected:
  // Memory of this rank that peers have mapped, and the mapped addresses of the peers' counterparts.
  struct Arena {
    DeviceView own;
    std::vector<cuda::PeerMemory> mapped;
    std::vector<std::byte*> at;  // for each rank; null if it is not mapped
  };
  // An array in such memory.
  struct Array {
    const Arena* arena;
    std::size_t begin;  // bytes
    std::size_t count;  // floats

    float* of(std::size_t rank) const { return reinterpret_cast<float*>(arena->at[rank] + begin); }
  };

  // Each rank maps the memory of `peers`, ranks on the node. `scratch_bytes`: for arrays outside allocate()'s memory.
  // Collective. Throws Error, on all ranks, if a rank cannot access a peer's memory.
  PeerAllReduce(const World& world, cudaStream_t stream, const std::vector<std::size_t>& peers,
                std::size_t scratch_bytes);

  virtual void put_array(const Array& array, Verb verb) = 0;
  // Raises this rank's flags to the highest values that the stream waits for.
  virtual void raise_own_flags() = 0;

  const World& world() const { return world_; }
  std::size_t rank() const { return static_cast<std::size_t>(world_.rank()); }
  std::size_t size() const { return static_cast<std::size_t>(world_.size()); }
  int rank_in_job(std::size_t rank) const { return world_.rank_in_job(static_cast<int>(rank)); }
  cudaStream_t aside() const { return aside_.get(); }  // a stream that never waits for another rank

  Arena share(std::size_t bytes);  // zeroed. Collective
  std::optional<Array> find(DeviceView values) const;
  std::size_t scratch_bytes() const { return scratch_.bytes; }
  // Copies this rank's memory to the host, beside the stream.
  void read_own(DeviceView memory, void* to);

 private:
  // Each rank's state in the host's memory.
  struct Farewell {
    std::atomic<bool> given_up = false;  // has left all-reduces unfinished; set before releasing peers' flags
  };

  void put_staged(DeviceView values);
  void finish(double patience);
  Farewell& farewell(std::size_t rank) const { return *farewells_[rank]; }

  World world_;
  const std::vector<std::size_t> peers_;
  cuda::Stream aside_;
  Buffer host_copy_;  // pinned
  SharedMemory host_memory_;
  std::vector<Farewell*> farewells_;

  // Memory that other ranks have mapped.
  using Shared = std::deque<Buffer>;
  std::unique_ptr<Shared> shared_ = std::make_unique<Shared>();
  std::deque<Arena> arenas_;
  DeviceView scratch_;
};

}  // namespace annulus
