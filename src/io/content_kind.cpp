#include "src/io/content_kind.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <vector>

#include "src/io/file_io.h"

namespace annulus {
namespace {

using namespace std::string_view_literals;

// "  <HTML>" begins with "<html".
bool begins_like(std::string_view text, std::string_view lower) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front())) != 0) text.remove_prefix(1);
  return text.size() >= lower.size() && std::equal(lower.begin(), lower.end(), text.begin(), [](char a, char b) {
           return a == std::tolower(static_cast<unsigned char>(b));
         });
}

// Protocol 2 or later; PyTorch's format before 1.6.
bool is_pickle(std::string_view begin) {
  return begin.size() > 1 && begin[0] == '\x80' && begin[1] >= 2 && begin[1] <= 5;
}

// The file begins with the header's length, below 2^32, and the header.
bool is_safetensors(std::string_view begin) {
  return begin.size() > 8 && begin.substr(4, 4) == "\0\0\0\0"sv && begin[8] == '{';
}

}  // namespace

ContentKind content_kind(std::string_view begin) {
  using enum ContentKind;
  if (begin.empty()) return empty;
  if (is_safetensors(begin)) return safetensors;
  if (begin.starts_with("version https://git-lfs")) return git_lfs_pointer;
  if (begins_like(begin, "<!doctype html") || begins_like(begin, "<html")) return web_page;
  if (begin.starts_with("PK\3\4")) return zip;
  if (is_pickle(begin)) return pickle;
  if (begin.starts_with("\x89HDF\r\n")) return hdf5;
  if (begin.starts_with("\x1f\x8b")) return gzip;
  if (begin.starts_with("\x93NUMPY")) return npy;
  if (begin.starts_with("GGUF")) return gguf;
  return begins_like(begin, "{") ? json : other;
}

std::string beginning(const std::filesystem::path& file) {
  const FileDescriptor open = open_to_read(file);
  std::vector<std::uint8_t> bytes(std::min<std::uint64_t>(size_of(open, file), 512));
  read_at(open, file, 0, bytes);
  return {bytes.begin(), bytes.end()};
}

}  // namespace annulus
