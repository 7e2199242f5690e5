#include "src/import/assembly.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <type_traits>

#include "kernels/base/error.h"
#include "src/import/run_jobs.h"
#include "src/import/shard_layout.h"
#include "src/io/block_checksums.h"
#include "src/io/file_io.h"
#include "src/io/hdf5.h"

namespace annulus {
namespace {

constexpr std::size_t kMostBytesAtOnce = 1 << 20;

template <class T>
void broadcast(const World& world, std::vector<T>& values) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::uint64_t size = values.size();
  world.broadcast(std::as_writable_bytes(std::span(&size, 1)));
  values.resize(size);
  world.broadcast(std::as_writable_bytes(std::span(values)));
}

// Holds what every rank knows about a source split.
struct SplitLayout {
  std::vector<std::uint64_t> first_samples, sizes;  // as in Collection
  ShardLayout layout;
  std::vector<ImagesSpace> images;  // per shard
};

SplitLayout share_layout(const World& world, Collection::Split split, bool shuffled, std::size_t files) {
  broadcast(world, split.first_samples);
  broadcast(world, split.sizes);
  broadcast(world, split.held_out);
  ShardLayout layout(split.sizes, shuffled, files, split.held_out);
  std::vector<ImagesSpace> images(layout.shards());
  return {std::move(split.first_samples), std::move(split.sizes), std::move(layout), std::move(images)};
}

// Names a file's split, and the shard that fills the split.
struct FileSplit {
  std::string name;
  std::size_t source;  // the source split's number
  std::size_t shard;
};

std::vector<FileSplit> splits_of(std::size_t file, std::size_t files, const Collection& collection,
                                 const std::vector<SplitLayout>& splits) {
  std::vector<FileSplit> found;
  for (std::size_t i = 0; i < splits.size(); ++i) {
    found.push_back({collection.splits[i].name, i, file});
    if (splits[i].layout.shards() > files) found.push_back({"validation", i, files + file});
  }
  return found;
}

template <class T>
void write_values(AtomicFile& file, std::uint64_t position, const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  file.write_at(position, {reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()});
}

// Writes a shard's labels and, for encoded images, offsets; for text, document offsets.
void write_small_datasets(AtomicFile& file, const SplitSpace& space, const ShardLayout& layout, std::size_t shard,
                          const Collection::Split& split, const DataFileHeader& header, bool encoded) {
  if (space.samples == 0) return;
  std::vector<std::int32_t> labels;
  std::vector<std::uint64_t> offsets{0};
  const Range positions = layout.positions(shard);
  for (std::size_t position = positions.begin; position < positions.end; ++position) {
    const std::size_t sample = layout.sample_at(position);
    labels.push_back(split.labels[sample]);
    offsets.push_back(offsets.back() + split.sizes[sample]);
  }
  if (header.is_text) {
    for (std::uint64_t& offset : offsets) offset /= header.text.token_bytes;
    return write_values(file, space.offsets_begin, offsets);
  }
  write_values(file, space.labels_begin, labels);
  if (encoded) write_values(file, space.offsets_begin, offsets);
}

std::uint64_t text_bytes_in(const ShardLayout& layout, std::size_t shard, const Collection::Split& split) {
  if (split.text_bytes.empty()) return 0;
  std::uint64_t bytes = 0;
  const Range positions = layout.positions(shard);
  for (std::size_t position = positions.begin; position < positions.end; ++position)
    bytes += split.text_bytes[layout.sample_at(position)];
  return bytes;
}

AtomicFile begin_file(const std::filesystem::path& path, const ImportJob& job, const Collection& collection,
                      const DataFileHeader& header, const std::vector<FileSplit>& content,
                      std::vector<SplitLayout>& splits) {
  std::vector<SplitSpace> spaces;
  for (const auto& [name, source, shard] : content) {
    const ShardLayout& layout = splits[source].layout;
    spaces.push_back({name,
                      layout.positions(shard).size(),
                      layout.bytes_in(shard),
                      text_bytes_in(layout, shard, collection.splits[source]),
                      0,
                      0,
                      {}});
  }
  AtomicFile file = preallocate(path, header, job.storage, spaces);
  for (std::size_t i = 0; i < content.size(); ++i) {
    const auto& [name, source, shard] = content[i];
    write_small_datasets(file, spaces[i], splits[source].layout, shard, collection.splits[source], header,
                         job.storage.encoded);
    splits[source].images[shard] = std::move(spaces[i].images);
  }
  return file;
}

void share_images_space(const World& world, ImagesSpace& place) {
  world.broadcast(std::as_writable_bytes(std::span(&place.chunk_bytes, 1)));
  broadcast(world, place.chunks);
}

// Holds the new files, open on this rank.
struct OpenFiles {
  explicit OpenFiles(const std::vector<std::filesystem::path>& paths) : files(paths) {
    for (const std::filesystem::path& file : files) descriptors.push_back(open_to_write(AtomicFile::partial(file)));
  }

  void write(std::size_t file, std::uint64_t position, std::span<const std::uint8_t> bytes) const {
    write_at(descriptors[file], files[file], position, bytes);
  }
  // Writes from a given byte in a split's images, across chunks.
  void write_images(std::size_t file, const ImagesSpace& place, std::uint64_t begin,
                    std::span<const std::uint8_t> bytes) const {
    while (!bytes.empty()) {
      const std::uint64_t within = begin % place.chunk_bytes;
      const auto part = bytes.first(std::min<std::uint64_t>(bytes.size(), place.chunk_bytes - within));
      write(file, place.chunks[begin / place.chunk_bytes] + within, part);
      begin += part.size();
      bytes = bytes.subspan(part.size());
    }
  }

  const std::vector<std::filesystem::path>& files;
  std::vector<FileDescriptor> descriptors;
};

// Copies a part's images to their positions. Images that stay adjacent are copied together.
class PartCopier {
 public:
  PartCopier(const std::filesystem::path& part, const SplitLayout& split, const OpenFiles& files)
      : part_(part), split_(split), files_(files), data_(open_to_read(part_data_file(part))) {}

  void copy(const Range& samples, const Report& report) {
    for (std::size_t sample = samples.begin; sample < samples.end;) {
      const Range run = run_from(sample, samples.end);
      if (!copy_run(run, report)) return;
      sample = run.end;
    }
    if (hash_.text() != read_part_index(part_).hash) {
      fail("{}: damaged; delete the folder it is in and import again", part_data_file(part_).string());
    }
  }

 private:
  Range run_from(std::size_t begin, std::size_t limit) const {
    const std::size_t shard = split_.layout.shard_of(begin);
    std::uint64_t bytes = split_.sizes[begin];
    std::size_t end = begin + 1;
    for (; end < limit && bytes + split_.sizes[end] <= kMostBytesAtOnce; bytes += split_.sizes[end++]) {
      if (split_.layout.shard_of(end) != shard) break;
      if (split_.layout.byte_in_shard(end) != split_.layout.byte_in_shard(begin) + bytes) break;
    }
    return {begin, end};
  }

  // Returns false if the copying must be abandoned. A large sample is copied in several portions.
  bool copy_run(const Range& run, const Report& report) {
    std::uint64_t left = 0;
    for (std::size_t sample = run.begin; sample < run.end; ++sample) left += split_.sizes[sample];
    const std::size_t shard = split_.layout.shard_of(run.begin);
    std::uint64_t to = split_.layout.byte_in_shard(run.begin);
    while (left > 0) {
      buffer_.resize(std::min<std::uint64_t>(left, kMostBytesAtOnce));
      read_at(data_, part_data_file(part_), read_, buffer_);
      hash_.add(std::span<const std::uint8_t>(buffer_));
      files_.write_images(shard % files_.files.size(), split_.images[shard], to, buffer_);
      read_ += buffer_.size();
      to += buffer_.size();
      left -= buffer_.size();
      if (!report(left == 0 ? run.size() : 0, buffer_.size())) return false;
    }
    return true;
  }

  const std::filesystem::path part_;
  const SplitLayout& split_;
  const OpenFiles& files_;
  FileDescriptor data_;
  Hash hash_;
  std::uint64_t read_ = 0;
  std::vector<std::uint8_t> buffer_;
};

std::vector<std::size_t> numbers_below(std::size_t count) {
  std::vector<std::size_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), std::size_t{0});
  return numbers;
}

// Copies every part once, on all ranks. Returns false if a signal requested a stop.
bool copy_parts(const World& world, const ImportJob& job, const std::filesystem::path& parts,
                const std::vector<SplitLayout>& splits, const OpenFiles& files) {
  const std::vector<PieceNumber> pieces = pieces_of(job.plan);
  return run_jobs(world, "writing", job.plan.samples(), numbers_below(pieces.size()), pieces.size(),
                  [&](std::size_t number, const Report& report) {
                    const auto& [split, piece] = pieces[number];
                    const SplitLayout& of_split = splits[split];
                    PartCopier copier(part_of(parts, job.plan.splits[split], piece), of_split, files);
                    copier.copy({of_split.first_samples[piece], of_split.first_samples[piece + 1]}, report);
                  });
}

// Adds checksums for the files' chunks, each file on a single rank. Uses `has_chunks` on rank 0 only. REQUIRES: all
// parts have been copied. Returns false if a signal requested a stop.
bool add_chunk_checksums(const World& world, bool has_chunks, const std::vector<std::filesystem::path>& files) {
  const std::vector<std::size_t> numbers = numbers_below(has_chunks ? files.size() : 0);
  return run_jobs(
      world, "adding checksums", "images", numbers, files.size(), [&](std::size_t number, const Report& report) {
        add_checksums(AtomicFile::partial(files[number]), [&report](std::size_t bytes) { return report(0, bytes); });
      });
}

// Returns the large arrays, whose blocks are checked on reading.
std::vector<ByteRange> large_arrays(const std::filesystem::path& file) {
  constexpr std::uint64_t least = std::uint64_t{1} << 20;
  std::vector<ByteRange> found;
  const hdf5::Group root = hdf5::File(file).root();
  for (const std::string& split : root.names()) {
    const hdf5::Group group = root.group(split);
    for (const std::string& name : group.names()) {
      const std::vector<ByteRange> ranges = group.dataset(name).ranges();
      const std::uint64_t bytes = ranges.back().end - ranges.front().begin;
      if (ranges.size() > 1 || bytes >= least) found.insert(found.end(), ranges.begin(), ranges.end());
    }
  }
  return found;
}

// Adds checksums for the files' blocks; each rank takes some blocks. REQUIRES: the files are complete. Returns false if
// a signal requested a stop.
bool add_block_checksums(const World& world, const std::vector<std::filesystem::path>& files) {
  constexpr std::uint64_t blocks_at_once = 8192;
  std::vector<std::uint64_t> bytes(files.size());
  world.all_or_none([&] {
    for (std::size_t file = 0; world.root() && file < files.size(); ++file) {
      const std::filesystem::path partial = AtomicFile::partial(files[file]);
      bytes[file] = std::filesystem::file_size(partial);
      end_checksums(partial, bytes[file], large_arrays(partial));
    }
  });
  broadcast(world, bytes);
  std::vector<std::pair<std::size_t, ByteRange>> jobs;
  for (std::size_t file = 0; file < files.size(); ++file) {
    const std::uint64_t blocks = blocks_of(bytes[file]);
    for (std::uint64_t begin = 0; begin < blocks; begin += blocks_at_once)
      jobs.push_back({file, {begin, std::min(begin + blocks_at_once, blocks)}});
  }
  return run_jobs(world, "adding checksums", "images", numbers_below(jobs.size()), jobs.size(),
                  [&](std::size_t number, const Report& report) {
                    const auto& [file, blocks] = jobs[number];
                    write_checksums(AtomicFile::partial(files[file]), bytes[file], blocks);
                    report(0, blocks.size() * BlockChecksums::kBlockBytes);
                  });
}

}  // namespace

bool assemble(const World& world, const ImportJob& job, const std::filesystem::path& parts, Collection collection,
              const DataFileHeader& header, const std::vector<std::filesystem::path>& files) {
  collection.splits.resize(job.plan.splits.size());
  std::vector<SplitLayout> splits;
  for (std::size_t i = 0; i < collection.splits.size(); ++i) {
    const bool shuffled = job.plan.shuffle && job.plan.splits[i].name == "train";
    splits.push_back(share_layout(world, collection.splits[i], shuffled, files.size()));
  }
  std::vector<AtomicFile> made;
  world.all_or_none([&] {
    if (!world.root()) return;
    for (std::size_t i = 0; i < files.size(); ++i)
      made.push_back(
          begin_file(files[i], job, collection, header, splits_of(i, files.size(), collection, splits), splits));
  });
  for (SplitLayout& split : splits)
    for (ImagesSpace& place : split.images) share_images_space(world, place);
  std::optional<OpenFiles> open;
  world.all_or_none([&] { open.emplace(files); });
  const auto flush_all = [&] {
    world.all_or_none([&] {
      for (std::size_t file = 0; file < files.size(); ++file) flush(open->descriptors[file], files[file]);
    });
  };
  if (!copy_parts(world, job, parts, splits, *open)) return false;
  flush_all();  // before a rank on another node reads the chunks for their checksums
  if (!add_chunk_checksums(world, header.chunk > 0, files)) return false;
  flush_all();
  if (!add_block_checksums(world, files)) return false;
  flush_all();  // the checksums, which any rank may have written
  world.all_or_none([&] {
    for (AtomicFile& file : made) file.commit();
  });
  return true;
}

}  // namespace annulus
