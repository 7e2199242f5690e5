#include "collectives/world/shared_memory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/host_memory.h"

namespace annulus {
namespace {

// Padding between parts: addresses that are a large power of two apart compete for the same cache sets.
constexpr std::size_t kSkew = 5 * kPage + 512;

constexpr std::string_view kPrefix = "/annulus-";

using Name = std::array<char, 64>;

// Returns a name that is unique on this machine and the same on all the node's ranks. It contains the time because
// killed ranks may have left a file, and process numbers are used again.
Name agree_on_name(const World& node) {
  static std::atomic<int> count = 0;
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  Name name{};
  if (node.root()) fmt::format_to_n(name.data(), name.size() - 1, "{}{}-{}-{:x}", kPrefix, getpid(), count++, now);
  node.broadcast(std::as_writable_bytes(std::span(name)));
  return name;
}

class File {
 public:
  explicit File(int descriptor) : descriptor_(descriptor) {}
  ~File() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  File(File&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  File& operator=(File&&) = delete;

  int descriptor() const { return descriptor_; }

 private:
  int descriptor_;
};

// Every rank reports errors before any rank fails, so that nobody waits for a rank that has gone.
int worst_of(const World& node, int error) {
  double worst = error;
  node.maximum({&worst, 1});
  return static_cast<int>(worst);
}

void expect_success(const World& node, int error, std::size_t bytes) {
  if (error != 0)
    throw NoSharedMemory(
        fmt::format("cannot share {} bytes between the {} ranks of this node: {}; give /dev/shm more space, or use "
                    "--all-reduce mpi",
                    bytes, node.size(), std::strerror(error)));
}

// Removes this user's empty files that killed ranks left between creating and unlinking. A file in use is locked,
// except in the moment after creation.
void remove_leftovers() {
  constexpr std::time_t kMoment = 5;  // seconds
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm", error)) {
    const std::string name = '/' + entry.path().filename().string();
    if (!name.starts_with(kPrefix)) continue;
    const File file(shm_open(name.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK, 0));
    struct stat status {};
    if (file.descriptor() < 0 || fstat(file.descriptor(), &status) != 0) continue;
    const bool is_ours = S_ISREG(status.st_mode) && status.st_uid == geteuid() && status.st_size == 0;
    if (is_ours && time(nullptr) - status.st_mtime > kMoment && flock(file.descriptor(), LOCK_EX | LOCK_NB) == 0)
      shm_unlink(name.c_str());
  }
}

// Opens an empty file that the first rank creates. It is unlinked as soon as all ranks have opened it, before memory is
// allocated, so that killed ranks leave nothing behind but, rarely, an empty file, which a later job removes.
File open_on_all(const World& node, std::size_t bytes) {
  const Name name = agree_on_name(node);
  if (node.root()) remove_leftovers();
  if (!node.root()) node.barrier();
  File file(shm_open(name.data(), node.root() ? O_CREAT | O_EXCL | O_RDWR : O_RDWR, 0600));
  int error = file.descriptor() < 0 ? errno : 0;
  if (node.root() && error == 0) flock(file.descriptor(), LOCK_EX);  // until this rank closes it, or dies
  if (node.root()) node.barrier();
  error = worst_of(node, error);
  if (node.root()) shm_unlink(name.data());
  expect_success(node, error, bytes);
  return file;
}

}  // namespace

SharedMemory::Region::Region(const World& node, std::size_t parts, std::size_t part_bytes)
    : part_bytes_((part_bytes + kPage - 1) / kPage * kPage + kSkew), bytes_(part_bytes_ * parts), parts_(parts) {
  std::iota(parts_.begin(), parts_.end(), std::size_t{0});
  int error = 0;
  if (node.size() == 1) {
    error = map(-1, MAP_PRIVATE | MAP_ANONYMOUS);
  } else {
    const File file = open_on_all(node, bytes_);
    // Allocates everything now: a page that is missing later would be a bus error.
    if (node.root()) error = posix_fallocate(file.descriptor(), 0, static_cast<off_t>(bytes_));
    node.broadcast(std::as_writable_bytes(std::span(&error, 1)));
    if (error == 0) error = map(file.descriptor(), MAP_SHARED);
  }
  expect_success(node, worst_of(node, error), bytes_);
}

// Returns an error number, or 0.
int SharedMemory::Region::map(int descriptor, int flags) {
  void* address = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, flags | MAP_POPULATE, descriptor, 0);
  if (address == MAP_FAILED) return errno;
  address_ = static_cast<std::byte*>(address);
  madvise(address_, bytes_, MADV_HUGEPAGE);  // a hint
  return 0;
}

SharedMemory::Region::~Region() {
  if (address_ != nullptr) munmap(address_, bytes_);
}

std::span<std::byte> SharedMemory::Region::part(int rank) const {
  return {address_ + parts_[static_cast<std::size_t>(rank)] * part_bytes_, part_bytes_};
}

void SharedMemory::Region::keep(std::span<const int> ranks) {
  std::vector<std::size_t> kept;
  for (const int rank : ranks) kept.push_back(parts_[static_cast<std::size_t>(rank)]);
  parts_ = std::move(kept);
}

void SharedMemory::continue_with(World node) {
  std::vector<int> ranks;  // in the node so far
  for (int rank = 0; rank < node_.size(); ++rank)
    for (int left = 0; left < node.size(); ++left)
      if (node_.rank_in_job(rank) == node.rank_in_job(left)) ranks.push_back(rank);
  for (const auto& region : regions_) region->keep(ranks);
  node_ = std::move(node);
}

// Returns the smallest region that fits and that every rank has freed, or null. Collective.
SharedMemory::Region* SharedMemory::reusable(std::size_t bytes) const {
  const auto fits = [&](const Region& region) {
    const std::size_t room = region.part_bytes() - kSkew;
    return region.is_free && room >= bytes && room <= 2 * std::max(bytes, kPage);
  };
  std::vector<std::uint64_t> sizes = node_.gather(std::uint64_t{bytes});
  for (std::size_t rank = 1; rank < sizes.size(); ++rank)
    if (sizes[rank] != sizes[0])
      fail("ranks {} and {} allocate {} and {} bytes of shared memory together", node_.rank_in_job(0),
           node_.rank_in_job(static_cast<int>(rank)), sizes[0], sizes[rank]);
  std::vector<std::byte> usable;
  {
    const std::scoped_lock lock(mutex_);
    for (const auto& region : regions_) usable.push_back(std::byte{fits(*region)});
  }
  const std::vector<std::byte> everywhere = node_.gather(std::span<const std::byte>(usable));
  Region* found = nullptr;
  for (std::size_t number = 0; number < usable.size(); ++number) {
    bool all = true;
    for (std::size_t at = number; at < everywhere.size(); at += usable.size()) all &= everywhere[at] != std::byte{0};
    Region* const region = regions_[number].get();
    if (all && (found == nullptr || region->part_bytes() < found->part_bytes())) found = region;
  }
  return found;
}

std::span<std::byte> SharedMemory::allocate(std::size_t bytes) {
  if (Region* const used = reusable(bytes)) {
    const std::scoped_lock lock(mutex_);
    used->is_free = false;
    const std::span<std::byte> part = used->part(node_.rank()).first(bytes);
    std::ranges::fill(part, std::byte{0});
    return part;
  }
  auto region = std::make_unique<Region>(node_, static_cast<std::size_t>(node_.size()), bytes);
  const std::scoped_lock lock(mutex_);
  regions_.push_back(std::move(region));
  return regions_.back()->part(node_.rank()).first(bytes);
}

bool SharedMemory::free(const std::byte* part) {
  const std::scoped_lock lock(mutex_);
  for (const auto& region : regions_)
    if (!region->is_free && region->part(node_.rank()).data() == part) return region->is_free = true;
  return false;
}

std::span<std::byte> SharedMemory::allocate_common(std::size_t bytes) {
  auto region = std::make_unique<Region>(node_, 1, bytes);
  const std::scoped_lock lock(mutex_);
  common_.push_back(std::move(region));
  return common_.back()->part(0).first(bytes);
}

bool SharedMemory::in_common(const void* address) const {
  const std::scoped_lock lock(mutex_);
  return std::ranges::any_of(common_, [address](const auto& region) {
    const std::span<std::byte> part = region->part(0);
    return address >= part.data() && address < part.data() + part.size();
  });
}

std::optional<SharedMemory::Place> SharedMemory::find(std::span<const std::byte> own) const {
  const std::scoped_lock lock(mutex_);
  for (std::size_t region = 0; region < regions_.size(); ++region) {
    const std::span<std::byte> part = regions_[region]->part(node_.rank());
    if (own.data() >= part.data() && own.data() + own.size() <= part.data() + part.size())
      return Place{region, static_cast<std::uint64_t>(own.data() - part.data())};
  }
  return std::nullopt;
}

const SharedMemory::Region& SharedMemory::region(std::uint64_t number) const {
  const std::scoped_lock lock(mutex_);
  if (number >= regions_.size()) fail("an array is in shared memory that this rank has not allocated yet");
  return *regions_[number];
}

std::byte* SharedMemory::at(int rank, const Place& place) const {
  return region(place.region).part(rank).data() + place.offset;
}

std::span<std::byte* const> SharedMemory::everywhere(std::span<const std::byte> own) {
  found_.clear();
  if (const auto place = find(own))
    for (int rank = 0; rank < node_.size(); ++rank) found_.push_back(at(rank, *place));
  return found_;
}

}  // namespace annulus
