#include "collectives/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "kernels/error.h"
#include "kernels/host_memory.h"

namespace annulus {
namespace {

// Between the parts. Addresses that are a large power of two apart compete for the same cache sets.
constexpr std::size_t kSkew = 5 * kPage + 512;

using Name = std::array<char, 64>;

// One that nobody else on this machine uses, the same on all ranks of the node.
Name agree_on_name(const World& node) {
  static std::atomic<int> count = 0;
  Name name{};
  if (node.root()) fmt::format_to_n(name.data(), name.size() - 1, "/annulus-{}-{}", getpid(), count++);
  node.broadcast(std::as_writable_bytes(std::span(name)));
  return name;
}

class File {
 public:
  explicit File(int descriptor) : descriptor_(descriptor) {}
  ~File() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  int descriptor() const { return descriptor_; }

 private:
  int descriptor_;
};

}  // namespace

SharedMemory::Region::Region(const World& node, std::size_t part_bytes)
    : part_bytes_((part_bytes + kPage - 1) / kPage * kPage + kSkew),
      bytes_(part_bytes_ * static_cast<std::size_t>(node.size())) {
  const Name name = agree_on_name(node);
  // The first rank makes it and the others open it; once all have it, it needs no name. Every rank says how it fared
  // before anybody fails, so that nobody waits for one that has gone.
  int error = 0;
  if (node.root()) {
    const File file(shm_open(name.data(), O_CREAT | O_EXCL | O_RDWR, 0600));
    if (file.descriptor() < 0)
      error = errno;
    else  // all of it now: a page that is missing later would be a bus error
      error = posix_fallocate(file.descriptor(), 0, static_cast<off_t>(bytes_));
  }
  node.broadcast(std::as_writable_bytes(std::span(&error, 1)));
  if (error == 0) {
    const File file(shm_open(name.data(), O_RDWR, 0));
    void* address = file.descriptor() < 0 ? MAP_FAILED
                                          : mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
                                                 file.descriptor(), 0);
    error = address == MAP_FAILED ? errno : 0;
    if (error == 0) address_ = static_cast<std::byte*>(address);
    if (error == 0) madvise(address_, bytes_, MADV_HUGEPAGE);  // a wish
  }
  double worst = error;
  node.maximum({&worst, 1});
  if (node.root()) shm_unlink(name.data());
  if (worst != 0)
    fail(
        "cannot share {} bytes between the {} ranks of this node: {}; give /dev/shm more space, or use --all-reduce "
        "mpi",
        bytes_, node.size(), std::strerror(static_cast<int>(worst)));
}

SharedMemory::Region::~Region() {
  if (address_ != nullptr) munmap(address_, bytes_);
}

std::span<std::byte> SharedMemory::Region::part(int rank) const {
  return {address_ + static_cast<std::size_t>(rank) * part_bytes_, part_bytes_};
}

std::span<std::byte> SharedMemory::allocate(std::size_t bytes) {
  regions_.push_back(std::make_unique<Region>(node_, bytes));
  return regions_.back()->part(node_.rank()).first(bytes);
}

std::optional<SharedMemory::Place> SharedMemory::find(std::span<const std::byte> own) const {
  for (std::size_t region = 0; region < regions_.size(); ++region) {
    const std::span<std::byte> part = regions_[region]->part(node_.rank());
    if (own.data() >= part.data() && own.data() + own.size() <= part.data() + part.size())
      return Place{region, static_cast<std::uint64_t>(own.data() - part.data())};
  }
  return std::nullopt;
}

std::byte* SharedMemory::at(int rank, const Place& place) const {
  return regions_[place.region]->part(rank).data() + place.offset;
}

std::span<std::byte* const> SharedMemory::everywhere(std::span<const std::byte> own) {
  found_.clear();
  if (const auto place = find(own))
    for (int rank = 0; rank < node_.size(); ++rank) found_.push_back(at(rank, *place));
  return found_;
}

}  // namespace annulus
