#include "tests/unit/token_file.h"

#include <hdf5.h>

#include <algorithm>

#include "src/io/atomic_file.h"
#include "src/io/hdf5.h"

namespace annulus::test {
namespace {

// As h5py does it, in chunks of 16 if compressed.
void write_tokens(const std::filesystem::path& file, const TokenFile& data) {
  const hsize_t extent = data.tokens.size(), chunk = std::min<hsize_t>(extent, 16);
  const hid_t type = data.bytes_each == 1 ? H5T_STD_U8LE : data.bytes_each == 2 ? H5T_STD_U16LE : H5T_STD_U32LE;
  const hdf5::Handle<H5Fclose> hdf5(H5Fopen(file.c_str(), H5F_ACC_RDWR, H5P_DEFAULT));
  const hdf5::Handle<H5Pclose> properties(H5Pcreate(H5P_DATASET_CREATE));
  if (data.is_compressed) {
    H5Pset_chunk(properties.id(), 1, &chunk);
    H5Pset_deflate(properties.id(), 4);
  }
  const hdf5::Handle<H5Sclose> space(H5Screate_simple(1, &extent, nullptr));
  const hdf5::Handle<H5Dclose> dataset(
      H5Dcreate2(hdf5.id(), "train/tokens", type, space.id(), H5P_DEFAULT, properties.id(), H5P_DEFAULT));
  H5Dwrite(dataset.id(), H5T_NATIVE_UINT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, data.tokens.data());
}

}  // namespace

TokenFile::TokenFile(std::size_t size) : documents{0, static_cast<std::int64_t>(size)} {
  for (std::size_t i = 0; i < size; ++i) tokens.push_back(static_cast<std::uint32_t>(i % 1000));
}

void TokenFile::write(const std::filesystem::path& file) const {
  hdf5::NewFile hdf5(file);
  hdf5::Group root = hdf5.root();
  root.set_integer("vocabulary", vocabulary);
  if (!tokenizer.empty()) root.set_string("tokenizer_data", tokenizer);
  hdf5::Group train = root.create_group("train");
  if (text_bytes > 0) train.set_integer("bytes", text_bytes);
  train.write("documents", {documents.size()}, std::span(documents));
  write_atomically(file, hdf5.image());
  write_tokens(file, *this);
}

}  // namespace annulus::test
