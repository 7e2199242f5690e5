#include "src/import/idx.h"

#include <zlib.h>

#include <catch2/catch.hpp>

#include "tests/unit/error_text.h"
#include "tests/unit/idx_files.h"

namespace annulus {
namespace {

using Catch::Contains;

void write_gzip(const std::filesystem::path& file, const std::string& text) {
  const gzFile stream = gzopen(file.c_str(), "wb");
  gzwrite(stream, text.data(), static_cast<unsigned>(text.size()));
  gzclose(stream);
}

std::string error_with(const std::string& content) {
  const test::TemporaryFolder folder;
  test::write_text(folder / "bad.idx", content);
  const std::string text = test::error_of([&] { read_idx(folder / "bad.idx"); });
  CHECK_THAT(text, Contains("bad.idx"));
  return text;
}

}  // namespace

TEST_CASE("IDX files are read, compressed or not", "[idx]") {
  const test::TemporaryFolder folder;
  const std::string content = test::idx_header({2, 3}) + "abcdef";
  test::write_text(folder / "plain", content);
  write_gzip(folder / "compressed", content);
  for (const char* name : {"plain", "compressed"}) {
    const IdxArray array = read_idx(folder / name);
    CHECK(array.shape == Shape{2, 3});
    CHECK(std::string(array.values.begin(), array.values.end()) == "abcdef");
  }
}

TEST_CASE("invalid IDX files are refused with a reason", "[idx]") {
  const test::TemporaryFolder folder;
  CHECK_THAT(test::error_of([&] { read_idx(folder / "none"); }), Contains("No such file or directory"));
  CHECK_THAT(error_with(""), Contains("ends within its header"));
  CHECK_THAT(error_with("PK\3\4 is not IDX"), Contains("not an IDX file"));
  CHECK_THAT(error_with(std::string("\0\0\x0d\1", 4)), Contains("0x0d"));
  CHECK_THAT(error_with(test::idx_header({2, 3}).substr(0, 9)), Contains("ends within its header"));
  CHECK_THAT(error_with(test::idx_header({2, 3}) + "abcde"), Contains("ends within its elements"));
  CHECK_THAT(error_with(test::idx_header({2, 3}) + "abcdefg"), Contains("after its last element"));
}

TEST_CASE("IDX headers with huge sizes do not allocate memory", "[idx]") {
  constexpr std::size_t kMost = 0xffffffff;
  CHECK_THAT(error_with(test::idx_header({kMost, kMost, kMost}) + "abc"), Contains("more elements than"));
  CHECK_THAT(error_with(test::idx_header({kMost, kMost}) + "abc"), Contains("ends within its elements"));
}

TEST_CASE("damaged gzip files are refused", "[idx]") {
  const test::TemporaryFolder folder;
  write_gzip(folder / "whole", test::idx_header({1000}) + std::string(1000, 'x'));
  const std::string whole = test::read_text(folder / "whole");
  CHECK_THAT(error_with(whole.substr(0, whole.size() - 10)), Contains("fetch the file again"));
  std::string damaged = whole;
  damaged[damaged.size() - 6] ^= 1;  // the checksum
  CHECK_THAT(error_with(damaged), Contains("incorrect data check"));
}

}  // namespace annulus
