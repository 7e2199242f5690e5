#include "src/import/idx.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>

#include "kernels/base/error.h"
#include "src/io/checked_product.h"
#include "src/io/file_io.h"

namespace annulus {
namespace {

constexpr std::uint8_t kUnsignedByte = 0x08;

std::size_t checked_elements(const Shape& shape, const std::string& path) {
  const auto product = checked_product(shape);
  if (!product) fail("{}: more elements than the address space can hold", path);
  return *product;
}

}  // namespace

// zlib's reader also reads uncompressed files.
IdxReader::IdxReader(const std::filesystem::path& file)
    : path_(file.string()), file_(gzdopen(open_to_read(file).release(), "rb")) {
  if (!file_) fail("{}: cannot open: {}", path_, std::generic_category().message(errno));
  gzbuffer(file_.get(), 1 << 18);
  read_header();
}

void IdxReader::read(std::span<std::uint8_t> elements) {
  read_exactly(elements, "elements");
}

void IdxReader::expect_end() {
  std::array<std::uint8_t, 1> beyond;
  if (read_some(beyond) != 0) fail("{}: has bytes after its last element; fetch the file again", path_);
}

// Fills `bytes` up to the end of the file and returns the number of bytes read.
std::size_t IdxReader::read_some(std::span<std::uint8_t> bytes) {
  const int count = gzread(file_.get(), bytes.data(), static_cast<unsigned>(bytes.size()));
  int status = Z_OK;
  const char* message = gzerror(file_.get(), &status);
  if (count < 0 || status == Z_BUF_ERROR) fail("{}: cannot read: {}; fetch the file again", path_, message);
  return static_cast<std::size_t>(count);
}

void IdxReader::read_exactly(std::span<std::uint8_t> bytes, const char* what) {
  if (read_some(bytes) != bytes.size()) fail("{}: ends within its {}; fetch the file again", path_, what);
}

void IdxReader::read_header() {
  std::array<std::uint8_t, 4> magic;
  read_exactly(magic, "header");
  if (magic[0] != 0 || magic[1] != 0 || magic[3] == 0) fail("{}: not an IDX file", path_);
  if (magic[2] != kUnsignedByte) {
    fail("{}: elements of type {:#04x}; only unsigned bytes ({:#04x}) are read", path_, magic[2], kUnsignedByte);
  }
  shape_.resize(magic[3]);
  for (std::size_t& extent : shape_) {
    std::array<std::uint8_t, 4> word;
    read_exactly(word, "header");
    extent = std::size_t{word[0]} << 24 | std::size_t{word[1]} << 16 | std::size_t{word[2]} << 8 | word[3];
  }
}

// Memory grows with the actual content, because the size in the header may be wrong.
IdxArray read_idx(const std::filesystem::path& file) {
  constexpr std::size_t kBlock = 1 << 20;
  IdxReader reader(file);
  const std::size_t count = checked_elements(reader.shape(), reader.path());
  std::vector<std::uint8_t> values;
  while (values.size() < count) {
    const std::size_t begin = values.size();
    values.resize(std::min(count, begin + kBlock));
    reader.read(std::span(values).subspan(begin));
  }
  reader.expect_end();
  return {reader.shape(), std::move(values)};
}

}  // namespace annulus
