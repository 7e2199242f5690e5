#include "src/data/idx.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <span>
#include <system_error>

#include "kernels/error.h"

namespace annulus {
namespace {

constexpr std::uint8_t kUnsignedByte = 0x08;

struct CloseGzip {
  void operator()(gzFile file) const { gzclose_r(file); }
};

// zlib's reader passes through what is not compressed.
class Stream {
 public:
  explicit Stream(const std::filesystem::path& path) : path_(path.string()), file_(gzopen(path_.c_str(), "rbe")) {
    if (!file_) fail("{}: cannot open: {}", path_, std::generic_category().message(errno));
    gzbuffer(file_.get(), 1 << 18);
  }

  const std::string& path() const { return path_; }

  // Fills `bytes` as far as the file goes, and says how far.
  std::size_t read(std::span<std::uint8_t> bytes) {
    const int count = gzread(file_.get(), bytes.data(), static_cast<unsigned>(bytes.size()));
    int status = Z_OK;
    const char* message = gzerror(file_.get(), &status);
    if (count < 0 || status == Z_BUF_ERROR) fail("{}: cannot read: {}; fetch the file again", path_, message);
    return static_cast<std::size_t>(count);
  }

  void read_exactly(std::span<std::uint8_t> bytes, const char* what) {
    if (read(bytes) != bytes.size()) fail("{}: ends within its {}; fetch the file again", path_, what);
  }

 private:
  std::string path_;
  std::unique_ptr<gzFile_s, CloseGzip> file_;
};

Shape read_header(Stream& stream) {
  std::array<std::uint8_t, 4> magic;
  stream.read_exactly(magic, "header");
  if (magic[0] != 0 || magic[1] != 0 || magic[3] == 0) fail("{}: not an IDX file", stream.path());
  if (magic[2] != kUnsignedByte) {
    fail("{}: elements of type {:#04x}; only unsigned bytes ({:#04x}) are read", stream.path(), magic[2],
         kUnsignedByte);
  }
  Shape shape(magic[3]);
  for (std::size_t& extent : shape) {
    std::array<std::uint8_t, 4> word;
    stream.read_exactly(word, "header");
    extent = std::size_t{word[0]} << 24 | std::size_t{word[1]} << 16 | std::size_t{word[2]} << 8 | word[3];
  }
  return shape;
}

std::size_t checked_elements(const Shape& shape, const std::string& path) {
  std::size_t product = 1;
  for (const std::size_t extent : shape) {
    if (__builtin_mul_overflow(product, extent, &product)) fail("{}: more elements than memory has addresses", path);
  }
  return product;
}

// Memory grows with what the file really holds: a header may promise anything.
std::vector<std::uint8_t> read_values(Stream& stream, std::size_t count) {
  constexpr std::size_t kBlock = 1 << 24;
  std::vector<std::uint8_t> values;
  while (values.size() < count) {
    const std::size_t begin = values.size();
    values.resize(std::min(count, begin + kBlock));
    stream.read_exactly(std::span(values).subspan(begin), "elements");
  }
  return values;
}

}  // namespace

IdxArray read_idx(const std::filesystem::path& file) {
  Stream stream(file);
  Shape shape = read_header(stream);
  std::vector<std::uint8_t> values = read_values(stream, checked_elements(shape, stream.path()));
  std::array<std::uint8_t, 1> beyond;
  if (stream.read(beyond) != 0) fail("{}: goes on after its last element; fetch the file again", stream.path());
  return {std::move(shape), std::move(values)};
}

}  // namespace annulus
