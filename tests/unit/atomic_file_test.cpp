#include "src/io/atomic_file.h"

#include <catch2/catch.hpp>

#include "tests/unit/error_text.h"
#include "tests/unit/file_size_limit.h"
#include "tests/unit/temporary_folder.h"

namespace annulus {
namespace {

void write(const std::filesystem::path& file, const std::string& text) {
  write_atomically(file, std::as_bytes(std::span(text)));
}

}  // namespace

TEST_CASE("a file is created and replaced, with no temporary file left", "[atomic_file]") {
  const test::TemporaryFolder folder;
  write(folder / "a", "first");
  CHECK(test::read_text(folder / "a") == "first");
  write(folder / "a", "");
  CHECK(test::read_text(folder / "a").empty());
  CHECK(folder.files() == 1);
}

TEST_CASE("a killed writer's temporary file is overwritten", "[atomic_file]") {
  const test::TemporaryFolder folder;
  test::write_text(folder / "a.partial", "longer than what follows");
  write(folder / "a", "whole");
  CHECK(test::read_text(folder / "a") == "whole");
  CHECK(folder.files() == 1);
}

TEST_CASE("symbolic links in place of a temporary file are not followed", "[atomic_file]") {
  const test::TemporaryFolder folder;
  test::write_text(folder / "victim", "precious");
  std::filesystem::create_symlink(folder / "victim", folder / "a.partial");
  std::filesystem::create_symlink(folder / "victim", folder / "a");
  write(folder / "a", "whole");
  CHECK(test::read_text(folder / "victim") == "precious");
  CHECK(test::read_text(folder / "a") == "whole");
  CHECK_FALSE(std::filesystem::is_symlink(folder / "a"));
}

TEST_CASE("a failed write leaves only the old file", "[atomic_file]") {
  const test::TemporaryFolder folder;
  write(folder / "a", "old");
  {
    const test::FileSizeLimit limit(1000);
    const std::string text = test::error_of([&] { write(folder / "a", std::string(5000, 'x')); });
    CHECK_THAT(text, Catch::Contains((folder / "a").string()) && Catch::Contains("File too large"));
  }
  CHECK(test::read_text(folder / "a") == "old");
  CHECK(folder.files() == 1);
}

TEST_CASE("a missing folder, and a folder in place of the file, are named in the error", "[atomic_file]") {
  const test::TemporaryFolder folder;
  CHECK_THAT(test::error_of([&] { write(folder / "none/a", "x"); }),
             Catch::Contains("none/a") && Catch::Contains("No such file or directory"));
  std::filesystem::create_directory(folder / "b");
  CHECK_THAT(test::error_of([&] { write(folder / "b", "x"); }), Catch::Contains("Is a directory"));
  CHECK(folder.files() == 1);
}

TEST_CASE("a bare file name refers to the working directory", "[atomic_file]") {
  const test::TemporaryFolder folder;
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  write("bare", "x");
  std::filesystem::current_path(before);
  CHECK(test::read_text(folder / "bare") == "x");
}

}  // namespace annulus
