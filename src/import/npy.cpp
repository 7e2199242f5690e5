#include "src/import/npy.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstring>
#include <limits>
#include <string_view>

#include "kernels/base/error.h"
#include "src/io/checked_product.h"
#include "src/io/file_io.h"

namespace annulus {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::size_t kMostHeaderBytes = 1 << 16;
constexpr std::size_t kMostDimensions = 32;  // NumPy's own limit

std::uint64_t little_endian(std::span<const std::uint8_t> bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = bytes.size(); i > 0; --i) value = value << 8 | bytes[i - 1];
  return value;
}

// Returns the text after 'key': in the header, which is a Python dictionary of literals.
std::string_view value_of(std::string_view header, std::string_view key, const std::filesystem::path& file) {
  const std::size_t found = header.find(fmt::format("'{}'", key));
  const std::size_t colon = found == header.npos ? header.npos : header.find(':', found);
  const std::size_t begin = colon == header.npos ? header.npos : header.find_first_not_of(' ', colon + 1);
  if (begin == header.npos) fail("{}: '{}' is missing in its header", file.string(), key);
  return header.substr(begin);
}

// "(60000, 28, 28)", "(5,)" or "()".
Shape parse_shape(std::string_view text, const std::filesystem::path& file) {
  const std::size_t end = text.find(')');
  if (!text.starts_with('(') || end == text.npos) fail("{}: no shape in its header", file.string());
  text = text.substr(1, end - 1);
  Shape shape;
  while (!text.empty()) {
    std::size_t extent = 0;
    const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), extent);
    if (error != std::errc() || shape.size() == kMostDimensions) fail("{}: no shape in its header", file.string());
    shape.push_back(extent);
    text.remove_prefix(static_cast<std::size_t>(rest - text.data()));
    text.remove_prefix(std::min(text.find_first_not_of(", "), text.size()));
  }
  return shape;
}

}  // namespace

NpyFile::NpyFile(const std::filesystem::path& file) : file_(file), descriptor_(open_to_read(file)) {
  read_header();
  const auto bytes = checked_product(shape_, element_bytes_);
  if (!bytes) fail("{}: impossible number of elements", file_.string());
  const std::uint64_t found = size_of(descriptor_, file_) - begin_;
  if (found != *bytes) {
    fail("{}: {} bytes of elements, but its shape ({}) needs {}; fetch the file again", file_.string(), found,
         to_string(shape_), *bytes);
  }
}

void NpyFile::read_header() {
  std::array<std::uint8_t, 12> start{};
  const std::uint64_t size = size_of(descriptor_, file_);
  if (size < start.size()) fail("{}: too short for a .npy file", file_.string());
  read_at(descriptor_, file_, 0, start);
  if (std::memcmp(start.data(), kMagic.data(), kMagic.size()) != 0) fail("{}: not a .npy file", file_.string());
  const unsigned version = start[6];
  if (version < 1 || version > 3) fail("{}: version {} of the format; supported are 1 to 3", file_.string(), version);
  const std::size_t length_bytes = version == 1 ? 2 : 4;
  const std::uint64_t header_bytes = little_endian(std::span(start).subspan(8, length_bytes));
  begin_ = 8 + length_bytes + header_bytes;
  if (begin_ > size || header_bytes > kMostHeaderBytes) fail("{}: ends within its header", file_.string());
  std::vector<std::uint8_t> header(header_bytes);
  read_at(descriptor_, file_, 8 + length_bytes, header);
  parse({header.begin(), header.end()});
}

void NpyFile::parse(const std::string& header) {
  const std::string_view type = value_of(header, "descr", file_);
  const std::size_t end = type.find('\'', 1);
  if (!type.starts_with('\'') || end == type.npos) {
    fail("{}: its elements have fields; only arrays of numbers are supported", file_.string());
  }
  parse_type(std::string(type.substr(1, end - 1)));
  if (!value_of(header, "fortran_order", file_).starts_with("False")) {
    fail("{}: in Fortran order; save it with numpy.ascontiguousarray", file_.string());
  }
  shape_ = parse_shape(value_of(header, "shape", file_), file_);
}

// "|u1", "<i8".
void NpyFile::parse_type(const std::string& description) {
  constexpr std::array<std::string_view, 11> kTypes{"u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "b1", "f4", "f8"};
  const std::string_view type = std::string_view(description).substr(std::min<std::size_t>(1, description.size()));
  if ((!description.starts_with('<') && !description.starts_with('|')) ||
      std::ranges::find(kTypes, type) == kTypes.end())
    fail("{}: elements of type '{}'; only little-endian integers, bool, float32 and float64 are supported",
         file_.string(), description);
  element_bytes_ = static_cast<std::size_t>(type[1] - '0');
  is_signed_ = type[0] == 'i';
  is_float_ = type[0] == 'f';
}

void NpyFile::read_bytes(std::size_t begin, std::span<std::uint8_t> elements) const {
  read_at(descriptor_, file_, begin_ + begin, elements);
}

std::vector<float> NpyFile::read_floats(const Range& elements) const {
  std::vector<std::uint8_t> bytes(elements.size() * element_bytes_);
  read_at(descriptor_, file_, begin_ + elements.begin * element_bytes_, bytes);
  std::vector<float> values;
  values.reserve(elements.size());
  for (std::size_t i = 0; i < elements.size(); ++i) {
    const std::uint64_t bits = little_endian(std::span(bytes).subspan(i * element_bytes_, element_bytes_));
    values.push_back(element_bytes_ == sizeof(float) ? std::bit_cast<float>(static_cast<std::uint32_t>(bits))
                                                     : static_cast<float>(std::bit_cast<double>(bits)));
  }
  return values;
}

std::vector<std::int64_t> NpyFile::read_integers(const Range& elements) const {
  std::vector<std::uint8_t> bytes(elements.size() * element_bytes_);
  read_at(descriptor_, file_, begin_ + elements.begin * element_bytes_, bytes);
  std::vector<std::int64_t> values;
  values.reserve(elements.size());
  const auto unused_bits = static_cast<int>(8 * (sizeof(std::int64_t) - element_bytes_));
  for (std::size_t i = 0; i < elements.size(); ++i) {
    const std::uint64_t value = little_endian(std::span(bytes).subspan(i * element_bytes_, element_bytes_));
    if (!is_signed_ && value > std::numeric_limits<std::int64_t>::max()) {
      fail("{}: element {} is {}, which is too large", file_.string(), elements.begin + i, value);
    }
    const auto shifted = static_cast<std::int64_t>(value << unused_bits);
    values.push_back(is_signed_ ? shifted >> unused_bits : static_cast<std::int64_t>(value));
  }
  return values;
}

}  // namespace annulus
