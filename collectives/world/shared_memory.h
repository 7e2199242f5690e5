#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "collectives/world/world.h"
#include "kernels/base/error.h"

namespace annulus {

// The system has too little shared memory. Thrown on all ranks of a node, or none.
class NoSharedMemory : public Error {
 public:
  using Error::Error;
};

// Memory shared by a node's ranks: every rank has a part, and all ranks can access all parts. One thread at a time may
// allocate while another uses the memory.
class SharedMemory {
 public:
  explicit SharedMemory(World node) : node_(std::move(node)) {}

  const World& node() const { return node_; }

  // Continues with some of the node's ranks after other ranks were lost. The survivors' allocations stay.
  void continue_with(World node);

  // Allocates a zeroed part of `bytes` bytes for each rank, aligned to pages, and returns this rank's. It lives as long
  // as this object, or until free(). Collective. Throws NoSharedMemory; Error, on all ranks, if their sizes differ.
  std::span<std::byte> allocate(std::size_t bytes);

  // Keeps this rank's part for an allocate() that follows after every rank has freed its part. Not collective. Returns
  // false if no part begins there.
  bool free(const std::byte* part);

  // Allocates a single zeroed array for all ranks instead, and returns it; else as allocate().
  std::span<std::byte> allocate_common(std::size_t bytes);
  bool in_common(const void* address) const;

  // A position within the parts, independent of the rank.
  struct Place {
    std::uint64_t region = 0, offset = 0;
  };

  // Returns the position of `own` in this rank's parts; none if it is elsewhere.
  std::optional<Place> find(std::span<const std::byte> own) const;
  std::byte* at(int rank, const Place& place) const;

  // Returns the addresses that correspond to `own` in all ranks' parts, in rank order. Empty if `own` is not in this
  // rank's parts. Valid until the next call.
  std::span<std::byte* const> everywhere(std::span<const std::byte> own);

 private:
  // Consecutive parts of equal size, mapped by every rank.
  class Region {
   public:
    bool is_free = false;  // on this rank

    Region(const World& node, std::size_t parts, std::size_t part_bytes);
    ~Region();
    Region(const Region&) = delete;
    Region& operator=(const Region&) = delete;

    std::span<std::byte> part(int rank) const;
    std::size_t part_bytes() const { return part_bytes_; }
    void keep(std::span<const int> ranks);  // reassigns their parts to ranks 0, 1, ...

   private:
    int map(int descriptor, int flags);

    std::byte* address_ = nullptr;
    std::size_t part_bytes_, bytes_;
    std::vector<std::size_t> parts_;  // for each rank
  };

  Region* reusable(std::size_t bytes) const;
  const Region& region(std::uint64_t number) const;

  World node_;
  mutable std::mutex mutex_;  // guards the lists
  std::vector<std::unique_ptr<Region>> regions_;
  std::vector<std::unique_ptr<Region>> common_;  // a single part each
  std::vector<std::byte*> found_;
};

}  // namespace annulus
