#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "src/import/image_converter.h"
#include "src/io/atomic_file.h"

namespace annulus {

// A data file (FORMAT.md) with everything but its samples.
struct DataFileHeader {
  std::vector<std::string> classes;
  std::vector<float> mean, deviation;
  std::size_t chunk = 0;  // samples in a chunk of the images, about; 0: they are contiguous
};

// Where the images of a split lie in a file, one byte after the other: in chunks, or all in one.
struct ImagesPlace {
  std::uint64_t chunk_bytes = 0;
  std::vector<std::uint64_t> chunks;  // where they begin
  bool has_checksums = false;         // behind each, see hdf5::Group::reserve_chunks()
};

struct SplitRoom {
  std::string name;
  std::size_t samples = 0;  // where there are none, the file has no such group
  std::uint64_t bytes = 0;  // of all images

  // At which bytes of the file the samples belong.
  std::uint64_t labels_begin = 0;   // int32
  std::uint64_t offsets_begin = 0;  // uint64; where the images are encoded
  ImagesPlace images;
};

// Makes the file, under the name that it has until it is committed, with all its space on the disk, and fills in where
// the samples belong. Throws Error where the space is not there.
AtomicFile make_room(const std::filesystem::path& file, const DataFileHeader& header, const Storage& storage,
                     std::vector<SplitRoom>& splits);

}  // namespace annulus
