#include "tests/unit/data_file.h"

#include <hdf5.h>

#include "src/io/atomic_file.h"
#include "src/io/hdf5.h"

namespace annulus::test {
namespace {

// Like Group::write, but like h5py with chunks=... and compression="gzip".
void write_compressed(const std::filesystem::path& file, const DataFile& data) {
  const std::vector<hsize_t> extents(data.images_shape.begin(), data.images_shape.end());
  std::vector<hsize_t> chunk = extents;
  chunk.front() = data.images_per_chunk;
  const hdf5::Handle<H5Fclose> hdf5(H5Fopen(file.c_str(), H5F_ACC_RDWR, H5P_DEFAULT));
  const hdf5::Handle<H5Pclose> properties(H5Pcreate(H5P_DATASET_CREATE));
  H5Pset_chunk(properties.id(), static_cast<int>(chunk.size()), chunk.data());
  H5Pset_deflate(properties.id(), 4);
  const hdf5::Handle<H5Sclose> space(H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr));
  const hdf5::Handle<H5Dclose> dataset(
      H5Dcreate2(hdf5.id(), "train/images", H5T_STD_U8LE, space.id(), H5P_DEFAULT, properties.id(), H5P_DEFAULT));
  H5Dwrite(dataset.id(), H5T_NATIVE_UINT8, H5S_ALL, H5S_ALL, H5P_DEFAULT, data.images.data());
}

}  // namespace

DataFile::DataFile(std::size_t size) : images_shape{size, 2, 2, 1}, labels_shape{size} {
  for (std::size_t sample = 0; sample < size; ++sample) {
    images.insert(images.end(), 4, static_cast<std::uint8_t>(sample));
    labels.push_back(static_cast<std::int64_t>(sample % 2));
  }
}

void DataFile::encode(const std::vector<std::vector<std::uint8_t>>& files) {
  bytes.clear();
  offsets = {0};
  for (const auto& file : files) {
    bytes.insert(bytes.end(), file.begin(), file.end());
    offsets.push_back(static_cast<std::int64_t>(bytes.size()));
  }
}

void DataFile::write(const std::filesystem::path& file) const {
  hdf5::NewFile hdf5(file);
  hdf5::Group root = hdf5.root();
  root.set_strings("classes", classes);
  root.set_floats("mean", mean);
  root.set_floats("deviation", stddev);
  hdf5::Group train = root.create_group("train");
  train.write("labels", labels_shape, std::span(labels));
  if (!offsets.empty()) {
    train.write("bytes", {bytes.size()}, std::span(bytes));
    train.write("offsets", {offsets.size()}, std::span(offsets));
  } else if (images_per_chunk == 0) {
    train.write("images", images_shape, std::span(images));
  }
  write_atomically(file, hdf5.image());
  if (images_per_chunk != 0) write_compressed(file, *this);
}

std::size_t place_of_image(const std::filesystem::path& file, std::size_t sample) {
  const hdf5::Dataset images = hdf5::File(file).root().group("train").dataset("images");
  return images.offset().value() + sample * elements(images.shape()) / images.shape()[0];
}

}  // namespace annulus::test
