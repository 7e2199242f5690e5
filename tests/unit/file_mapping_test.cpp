#include "src/io/file_mapping.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <numeric>
#include <optional>
#include <thread>
#include <vector>

#include "src/io/file_io.h"
#include "tests/unit/temporary_folder.h"

namespace annulus {
namespace {

using Bytes = std::vector<std::uint8_t>;

constexpr std::size_t kFile = 40000;  // ten pages, nearly

// A file whose bytes differ from page to page, mapped from here to its end.
struct Mapped {
  explicit Mapped(std::size_t from) : offset(from) {
    std::iota(content.begin(), content.end(), 0);
    for (std::size_t i = 0; i < kFile; ++i) content[i] ^= static_cast<std::uint8_t>(i >> 12);
    test::write_text(path, {content.begin(), content.end()});
    mapping = FileMapping(open_to_read(path), offset, kFile - offset);  // which does not need the file open
  }

  std::optional<Bytes> read() const {
    Bytes bytes(kFile - offset);
    if (!read_mapped([&] { std::ranges::copy(mapping.bytes(), bytes.begin()); })) return std::nullopt;
    return bytes;
  }
  Bytes expected() const { return {content.begin() + static_cast<std::ptrdiff_t>(offset), content.end()}; }

  test::TemporaryFolder folder;
  std::filesystem::path path = folder / "file";
  std::size_t offset;
  Bytes content = Bytes(kFile);
  FileMapping mapping;
};

// A file in memory, which is local even if the tests' folder is not.
struct MemoryFile {
  explicit MemoryFile(const std::string& content) {
    REQUIRE(::write(file.number(), content.data(), content.size()) > 0);
  }
  FileMapping map() const { return {file, 100, kFile - 100}; }
  FileDescriptor file{memfd_create("mapped", 0)};
};

}  // namespace

TEST_CASE("a file can be mapped from any offset", "[file_mapping]") {
  for (const std::size_t offset : {0, 1, 4095, 4096, 12345}) {
    Mapped mapped(offset);
    CHECK(mapped.read() == mapped.expected());
    const FileMapping moved = std::move(mapped.mapping);
    CHECK(std::ranges::equal(moved.bytes(), mapped.expected()));
  }
}

TEST_CASE("a file that cannot be mapped gives an empty mapping", "[file_mapping]") {
  CHECK(FileMapping(open_to_read("/proc/self/maps"), 0, 100).bytes().empty());
  CHECK(FileMapping().bytes().empty());
}

TEST_CASE("truncation of a mapped file is detected", "[file_mapping]") {
  const std::size_t zeros = GENERATE(0, 1, 100, 5000);  // at the end
  const std::size_t content = kFile - zeros;
  const MemoryFile memory(std::string(content, 'x') + std::string(zeros, '\0'));
  const FileMapping mapping = memory.map();
  const auto certain = [&](std::size_t size) {
    REQUIRE(::ftruncate(memory.file.number(), static_cast<off_t>(size)) == 0);
    bool found = false;
    return read_mapped([&] { found = mapping.surely_whole(); }) && found;
  };
  CHECK(certain(kFile));
  CHECK(certain(content));  // truncated data in the page still reads as before
  for (const std::size_t size : {content - 1, content - 4096, std::size_t{1}, std::size_t{0}})
    CHECK_FALSE(certain(size));
  CHECK_FALSE(certain(kFile));  // there are zeros now
}

TEST_CASE("all zeros, and files shorter than the mapping, cannot be verified", "[file_mapping]") {
  CHECK_FALSE(MemoryFile(std::string(kFile, '\0')).map().surely_whole());
  CHECK_FALSE(MemoryFile(std::string(5000, 'x')).map().surely_whole());
  CHECK_FALSE(FileMapping().surely_whole());
}

TEST_CASE("reading truncated mapped bytes is reported every time and on every thread", "[file_mapping]") {
  const Mapped mapped(100), whole(100);
  CHECK(mapped.read());
  std::filesystem::resize_file(mapped.path, 5000);
  std::array<int, 4> right{};
  {
    std::vector<std::jthread> threads;
    for (int& count : right)
      threads.emplace_back([&] {
        for (int round = 0; round < 50; ++round) count += !mapped.read() && whole.read() == whole.expected();
      });
  }
  CHECK(right == std::array{50, 50, 50, 50});
  std::filesystem::resize_file(mapped.path, kFile);
  CHECK(mapped.read());
}

TEST_CASE("a bus error outside of a mapping still ends the process", "[file_mapping]") {
  const Mapped mapped(0);
  std::filesystem::resize_file(mapped.path, 0);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    static_cast<void>(mapped.read());
    const volatile std::uint8_t* const gone = mapped.mapping.bytes().data();
    _exit(*gone == 0 ? 0 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK((WIFSIGNALED(status) || WEXITSTATUS(status) > 1));  // sanitizers make an exit of it
}

}  // namespace annulus
