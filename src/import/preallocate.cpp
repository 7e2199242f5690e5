#include "src/import/preallocate.h"

#include <algorithm>

#include "kernels/base/error.h"
#include "src/io/bytes.h"
#include "src/io/hdf5.h"

namespace annulus {
namespace {

constexpr std::size_t kDatasetsPerSplit = 3;
constexpr const char *kPixels = "images", *kEncodedImages = "bytes";
constexpr std::uint64_t kMostChunkBytes = std::uint64_t{1} << 31;  // HDF5 takes twice as many

std::vector<std::byte> file_without_datasets(const std::filesystem::path& file, const DataFileHeader& header,
                                             const std::vector<SplitSpace>& splits) {
  hdf5::NewFile made(file);
  hdf5::Group root = made.root();
  if (header.is_text) {
    root.set_string("tokenizer", header.text.name);
    root.set_integer("vocabulary", header.text.vocabulary);
    root.set_string("tokenizer_data", header.text.tokenizer);
  } else {
    root.set_strings("classes", header.classes);
    root.set_floats("mean", header.mean);
    root.set_floats("deviation", header.stddev);
  }
  for (const SplitSpace& split : splits) {
    if (split.samples == 0) continue;
    hdf5::Group group = root.create_group(split.name);
    if (header.is_text) group.set_integer("bytes", split.text_bytes);
  }
  return made.image();
}

// Returns the image dataset's chunk size in the outermost dimension: `chunk` samples, as bytes on average if encoded.
std::size_t chunk_rows(const SplitSpace& split, const Storage& storage, std::size_t chunk) {
  const std::size_t samples = std::min(chunk, split.samples);
  if (!storage.encoded) return samples;
  return std::min<std::uint64_t>(split.bytes, (split.bytes / split.samples + 1) * samples);
}

ImagesSpace plan_chunks(const SplitSpace& split, const Storage& storage, std::size_t chunk) {
  const std::size_t rows = chunk_rows(split, storage, chunk);
  const std::uint64_t chunk_bytes = storage.encoded ? rows : split.bytes / split.samples * rows;
  const std::uint64_t chunks = (split.bytes + chunk_bytes - 1) / chunk_bytes;
  if (chunk_bytes > kMostChunkBytes || chunks > hdf5::Group::kMostChunks)
    fail(
        "--chunk {}: makes {} chunks of {} each for the {} images in a file; the limit is {} of {}; choose another "
        "size{}",
        chunk, chunks, format_bytes(chunk_bytes), split.name, hdf5::Group::kMostChunks, format_bytes(kMostChunkBytes),
        chunks > hdf5::Group::kMostChunks ? ", or more --shards" : "");
  return {chunk_bytes, std::vector<std::uint64_t>(chunks)};
}

// Returns the size on disk for the data in all datasets.
std::uint64_t space_for(const SplitSpace& split) {
  const ImagesSpace& images = split.images;
  return split.samples * sizeof(std::int32_t) + (split.samples + 1) * sizeof(std::uint64_t) +
         images.chunks.size() * (images.chunk_bytes + hdf5::FileToExtend::kSpacePerChunk) +
         hdf5::FileToExtend::space_for(kDatasetsPerSplit, 1);
}

void add_images(hdf5::Group& group, const Storage& storage, std::size_t chunk, SplitSpace& split) {
  const char* const name = storage.encoded ? kEncodedImages : kPixels;
  const Shape shape = storage.encoded
                          ? Shape{split.bytes}
                          : Shape{split.samples, storage.size->height, storage.size->width, storage.channels};
  if (chunk > 0)
    split.images.chunks = group.reserve_chunks<std::uint8_t>(name, shape, chunk_rows(split, storage, chunk));
  else
    split.images.chunks = {group.reserve<std::uint8_t>(name, shape)};
}

std::uint64_t reserve_tokens(hdf5::Group& group, std::uint64_t bytes, std::size_t token_bytes) {
  const Shape shape{bytes / token_bytes};
  if (token_bytes == 1) return group.reserve<std::uint8_t>("tokens", shape);
  if (token_bytes == 2) return group.reserve<std::uint16_t>("tokens", shape);
  return group.reserve<std::uint32_t>("tokens", shape);
}

void add_datasets(hdf5::Group group, const Storage& storage, const DataFileHeader& header, SplitSpace& split) {
  if (header.is_text) {
    split.offsets_begin = group.reserve<std::uint64_t>("documents", {split.samples + 1});
    split.images.chunks = {reserve_tokens(group, split.bytes, header.text.token_bytes)};
    return;
  }
  split.labels_begin = group.reserve<std::int32_t>("labels", {split.samples});
  if (storage.encoded) split.offsets_begin = group.reserve<std::uint64_t>("offsets", {split.samples + 1});
  add_images(group, storage, header.chunk, split);
}

}  // namespace

AtomicFile preallocate(const std::filesystem::path& file, const DataFileHeader& header, const Storage& storage,
                       std::vector<SplitSpace>& splits) {
  AtomicFile made(file);
  const std::vector<std::byte> begin = file_without_datasets(file, header, splits);
  made.write_at(0, {reinterpret_cast<const std::uint8_t*>(begin.data()), begin.size()});
  std::uint64_t bytes = begin.size();
  for (SplitSpace& split : splits) {
    if (split.samples == 0) continue;
    split.images = header.chunk > 0 ? plan_chunks(split, storage, header.chunk) : ImagesSpace{split.bytes, {0}};
    bytes += space_for(split);
  }
  made.reserve(bytes);
  hdf5::FileToExtend extended(AtomicFile::partial(file));
  for (SplitSpace& split : splits) {
    if (split.samples > 0) add_datasets(extended.root().group(split.name), storage, header, split);
  }
  extended.close();
  return made;
}

void add_checksums(const std::filesystem::path& file, const std::function<bool(std::size_t bytes)>& go_on) {
  hdf5::FileToExtend extended(file);
  for (const std::string& split : extended.root().names()) {
    const hdf5::Group group = extended.root().group(split);
    group.dataset(group.has(kPixels) ? kPixels : kEncodedImages).renew_checksums(go_on);
  }
  extended.close();
}

}  // namespace annulus
