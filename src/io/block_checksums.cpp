#include "src/io/block_checksums.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/base/error.h"
#include "src/io/file_io.h"
#include "src/io/hash.h"

namespace annulus {
namespace {

constexpr std::uint64_t kBlock = BlockChecksums::kBlockBytes;
constexpr std::uint64_t kBlocksAtOnce = 16;  // 256 KiB
constexpr std::uint64_t kBits = 64;
constexpr std::uint64_t kMostRanges = std::uint64_t{1} << 20;

// The last bytes in a file with checksums. Before it are the ranges, and before the ranges the hashes.
struct Footer {
  std::uint64_t bytes, block_bytes, ranges;
  std::uint64_t hash;  // of the ranges and the numbers above
  std::array<char, 16> mark;
};
constexpr std::array<char, 16> kTrailerMark{
    "\x89"
    "annulus xxh3\r\n"};

template <class T>
std::span<std::uint8_t> bytes_of(std::span<T> values) {
  return {reinterpret_cast<std::uint8_t*>(values.data()), values.size_bytes()};
}

std::uint64_t hash_of(Footer footer, std::span<const ByteRange> ranges) {
  footer.hash = 0;
  return hash_bytes(std::as_bytes(std::span(&footer, 1)), hash_bytes(std::as_bytes(ranges)));
}

// The file's part that blocks cover.
ByteRange covered(const ByteRange& blocks, std::uint64_t file_bytes) {
  return {blocks.begin * kBlock, std::min(blocks.end * kBlock, file_bytes)};
}

// Hashes consecutive blocks.
void hash_blocks(std::span<const std::uint8_t> content, std::span<std::uint64_t> hashes) {
  for (std::uint64_t block = 0; block < hashes.size(); ++block)
    hashes[block] =
        hash_bytes(std::as_bytes(content.subspan(block * kBlock, std::min(kBlock, content.size() - block * kBlock))));
}

// Reads blocks, and hashes them into `hashes`.
void read_and_hash(const FileDescriptor& descriptor, const std::filesystem::path& file, const ByteRange& bytes,
                   std::span<std::uint64_t> hashes) {
  thread_local std::vector<std::uint8_t> content(kBlocksAtOnce * kBlock);
  const std::span<std::uint8_t> read = std::span(content).first(bytes.size());
  read_at(descriptor, file, bytes.begin, read);
  hash_blocks(read, hashes);
}

// Hashes blocks in place if all their bytes are mapped and still in the file.
bool hash_mapped(const MappedRange& mapped, const ByteRange& bytes, std::span<std::uint64_t> hashes) {
  if (bytes.begin < mapped.begin || bytes.end > mapped.begin + mapped.bytes.size()) return false;
  return read_mapped([&] { hash_blocks(mapped.bytes.subspan(bytes.begin - mapped.begin, bytes.size()), hashes); });
}

}  // namespace

std::uint64_t blocks_of(std::uint64_t bytes) {
  return (bytes + kBlock - 1) / kBlock;
}

std::optional<BlockChecksums> BlockChecksums::find(const FileDescriptor& descriptor,
                                                   const std::filesystem::path& file) {
  const std::uint64_t size = size_of(descriptor, file);
  Footer footer;
  if (size < sizeof footer) return {};
  read_at(descriptor, file, size - sizeof footer, bytes_of(std::span(&footer, 1)));
  if (footer.mark != kTrailerMark) return {};
  const auto damaged = [&] {
    fail("{}: damaged: its checksums are; restore it from a copy, or import again", file.string());
  };
  if (footer.block_bytes != kBlock || footer.ranges > kMostRanges || footer.bytes > size) damaged();
  std::vector<ByteRange> ranges(footer.ranges);
  const std::uint64_t end = blocks_of(footer.bytes) * sizeof(std::uint64_t) + std::span(ranges).size_bytes();
  if (footer.bytes + end + sizeof footer != size) damaged();
  read_at(descriptor, file, footer.bytes + end - std::span(ranges).size_bytes(), bytes_of(std::span(ranges)));
  if (footer.hash != hash_of(footer, ranges)) damaged();
  return BlockChecksums(descriptor, file, footer.bytes, std::move(ranges));
}

BlockChecksums::BlockChecksums(const FileDescriptor& descriptor, std::filesystem::path file, std::uint64_t bytes,
                               std::vector<ByteRange> elements)
    : file_(std::move(file)),
      bytes_(bytes),
      stored_(descriptor, bytes, blocks_of(bytes) * sizeof(std::uint64_t)),
      elements_(std::move(elements)),
      checked_(std::make_unique<std::atomic<std::uint64_t>[]>(blocks_of(bytes) / kBits + 1)) {}

bool BlockChecksums::checked(std::uint64_t block) const {
  return (checked_[block / kBits].load(std::memory_order_relaxed) >> block % kBits & 1) != 0;
}

void BlockChecksums::check(const FileDescriptor& descriptor, const ByteRange& bytes, const MappedRange& mapped) const {
  const std::uint64_t end = std::min(blocks_of(bytes.end), blocks_of(bytes_));
  for (std::uint64_t block = bytes.begin / kBlock; block < end; ++block) {
    if (checked(block)) continue;
    const std::uint64_t first = block;
    while (block + 1 < end && block + 1 - first < kBlocksAtOnce && !checked(block + 1)) ++block;
    check_blocks(descriptor, {first, block + 1}, mapped);
  }
}

void BlockChecksums::read_stored(const FileDescriptor& descriptor, const ByteRange& blocks,
                                 std::span<std::uint64_t> hashes) const {
  const std::uint64_t begin = blocks.begin * sizeof(std::uint64_t);
  const auto from_mapping = [&] { std::memcpy(hashes.data(), stored_.bytes().data() + begin, hashes.size_bytes()); };
  if (stored_.bytes().empty() || !read_mapped(from_mapping))
    read_at(descriptor, file_, bytes_ + begin, bytes_of(hashes));
}

void BlockChecksums::check_blocks(const FileDescriptor& descriptor, const ByteRange& blocks,
                                  const MappedRange& mapped) const {
  std::array<std::uint64_t, kBlocksAtOnce> found_array, stored_array;
  const std::span found = std::span(found_array).first(blocks.size()),
                  stored = std::span(stored_array).first(found.size());
  const ByteRange bytes = covered(blocks, bytes_);
  read_stored(descriptor, blocks, stored);
  // A mapping shows zeros behind a truncated file's end, so bytes that differ are read, which fails there.
  if (!hash_mapped(mapped, bytes, found) || !std::ranges::equal(found, stored))
    read_and_hash(descriptor, file_, bytes, found);
  for (std::uint64_t i = 0; i < blocks.size(); ++i) {
    const std::uint64_t block = blocks.begin + i;
    if (found[i] != stored[i]) {
      const ByteRange bad = covered({block, block + 1}, bytes_);
      fail("damaged: bytes {} to {} of the file differ from their checksum; restore it from a copy, or import again",
           bad.begin, bad.end);
    }
    checked_[block / kBits].fetch_or(std::uint64_t{1} << block % kBits, std::memory_order_relaxed);
  }
}

void BlockChecksums::check_structure(const FileDescriptor& descriptor) const try {
  std::uint64_t begin = 0;
  for (const ByteRange& range : elements_) {
    // The range's first and last block may have other bytes as well.
    const std::uint64_t end = blocks_of(range.begin) * kBlock;
    if (begin < end) check(descriptor, {begin, end});
    begin = std::max(begin, range.end / kBlock * kBlock);
  }
  if (begin < bytes_) check(descriptor, {begin, bytes_});
} catch (const Error& error) {
  fail("{}: {}", file_.string(), error.what());
}

void write_checksums(const std::filesystem::path& file, std::uint64_t bytes, const ByteRange& blocks) {
  const FileDescriptor from = open_to_read(file), to = open_to_write(file);
  std::vector<std::uint64_t> hashes(blocks.size());
  for (std::uint64_t done = 0; done < blocks.size(); done += kBlocksAtOnce) {
    const std::uint64_t begin = blocks.begin + done, end = std::min(begin + kBlocksAtOnce, blocks.end);
    read_and_hash(from, file, covered({begin, end}, bytes), std::span(hashes).subspan(done, end - begin));
  }
  write_at(to, file, bytes + blocks.begin * sizeof(std::uint64_t), bytes_of(std::span(hashes)));
}

void end_checksums(const std::filesystem::path& file, std::uint64_t bytes, std::vector<ByteRange> elements) {
  std::ranges::sort(elements, {}, &ByteRange::begin);
  Footer footer{bytes, kBlock, elements.size(), 0, kTrailerMark};
  footer.hash = hash_of(footer, elements);
  const FileDescriptor to = open_to_write(file);
  const std::uint64_t end = bytes + blocks_of(bytes) * sizeof(std::uint64_t);
  write_at(to, file, end, bytes_of(std::span(elements)));
  write_at(to, file, end + std::span(elements).size_bytes(), bytes_of(std::span(&footer, 1)));
}

}  // namespace annulus
