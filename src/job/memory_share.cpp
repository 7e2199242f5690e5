#include "src/job/memory_share.h"

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "kernels/base/allowed_resources.h"

namespace annulus {

int share_memory_of_node(const World& world) {
  const AllowedMemory& own = allowed_memory();
  const World node = world.node();
  const auto limited_alone = static_cast<std::uint64_t>(node.rank()) + 1;
  const std::array<std::uint64_t, 2> group{own.group, own.shared ? 0 : limited_alone};
  const std::vector<std::byte> all = node.gather(std::as_bytes(std::span(group)));
  int sharing = 0;
  for (std::size_t begin = 0; begin < all.size(); begin += sizeof group)
    sharing += std::memcmp(all.data() + begin, group.data(), sizeof group) == 0 ? 1 : 0;
  share_memory(sharing);
  return sharing;
}

}  // namespace annulus
