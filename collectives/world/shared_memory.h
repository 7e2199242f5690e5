#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "collectives/world/world.h"

namespace annulus {

// Memory that the ranks of a node share: every rank has a part, and sees the parts of all.
class SharedMemory {
 public:
  explicit SharedMemory(World node) : node_(std::move(node)) {}

  const World& node() const { return node_; }

  // A zeroed part of so many bytes for each rank, aligned to pages. It lives as long as this. Collective, with the
  // same size on every rank. Throws Error where the system has not so much shared memory.
  std::span<std::byte> allocate(std::size_t bytes);

  // A place that all parts have, in every rank's own way to name it.
  struct Place {
    std::uint64_t region = 0, offset = 0;
  };

  // Where in this rank's parts `own` lies, if it does.
  std::optional<Place> find(std::span<const std::byte> own) const;
  std::byte* at(int rank, const Place& place) const;

  // What lies at `own` in the parts of all ranks, in their order. Empty where `own` lies in none of this rank's. Valid
  // until the next call.
  std::span<std::byte* const> everywhere(std::span<const std::byte> own);

 private:
  // Parts of one size, one behind the other, mapped by every rank.
  class Region {
   public:
    Region(const World& node, std::size_t part_bytes);
    ~Region();
    Region(const Region&) = delete;
    Region& operator=(const Region&) = delete;

    std::span<std::byte> part(int rank) const;

   private:
    std::byte* address_ = nullptr;
    std::size_t part_bytes_, bytes_;
  };

  World node_;
  std::vector<std::unique_ptr<Region>> regions_;
  std::vector<std::byte*> found_;
};

}  // namespace annulus
