#include "src/import/data_file_room.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>

#include "src/data/hdf5.h"
#include "src/file_io.h"

namespace annulus {
namespace {

constexpr std::size_t kDatasetsPerSplit = 3;

std::vector<std::byte> file_without_datasets(const std::filesystem::path& file, const DataFileHeader& header,
                                             const std::vector<SplitRoom>& splits) {
  hdf5::NewFile made(file);
  hdf5::Group root = made.root();
  root.set_strings("classes", header.classes);
  root.set_floats("mean", header.mean);
  root.set_floats("deviation", header.deviation);
  for (const SplitRoom& split : splits) {
    if (split.samples > 0) root.create_group(split.name);
  }
  return made.image();
}

// Not all file systems can promise space. The others' word on what is free is the best that is to be had.
void reserve_space(const FileDescriptor& descriptor, const std::filesystem::path& file, std::uint64_t bytes) {
  if (::fallocate(descriptor.number(), 0, 0, static_cast<off_t>(bytes)) == 0) return;
  if (errno != EOPNOTSUPP) fail_to_write(file);
  struct statvfs system {};
  if (::fstatvfs(descriptor.number(), &system) != 0) fail_to_write(file);
  errno = ENOSPC;
  if (std::uint64_t{system.f_bavail} * system.f_frsize < bytes) fail_to_write(file);
  if (::ftruncate(descriptor.number(), static_cast<off_t>(bytes)) != 0) fail_to_write(file);
}

void add_datasets(hdf5::Group group, const Storage& storage, SplitRoom& split) {
  split.labels_begin = group.reserve<std::int32_t>("labels", {split.samples});
  if (storage.encoded) {
    split.offsets_begin = group.reserve<std::uint64_t>("offsets", {split.samples + 1});
    split.images_begin = group.reserve<std::uint8_t>("bytes", {split.bytes});
  } else {
    split.images_begin = group.reserve<std::uint8_t>(
        "images", {split.samples, storage.size->height, storage.size->width, storage.channels});
  }
}

}  // namespace

AtomicFile make_room(const std::filesystem::path& file, const DataFileHeader& header, const Storage& storage,
                     std::vector<SplitRoom>& splits) {
  AtomicFile made(file);
  const std::vector<std::byte> begin = file_without_datasets(file, header, splits);
  made.write_at(0, {reinterpret_cast<const std::uint8_t*>(begin.data()), begin.size()});
  std::uint64_t bytes = begin.size();
  for (const SplitRoom& split : splits) {
    bytes += split.samples * sizeof(std::int32_t) + (split.samples + 1) * sizeof(std::uint64_t) + split.bytes +
             kDatasetsPerSplit * hdf5::FileToExtend::kSpacePerDataset;
  }
  reserve_space(made.descriptor(), file, bytes);
  hdf5::FileToExtend extended(AtomicFile::partial(file));
  for (SplitRoom& split : splits) {
    if (split.samples > 0) add_datasets(extended.root().group(split.name), storage, split);
  }
  extended.close();
  return made;
}

}  // namespace annulus
