#include "src/cli/toml.h"

#include <catch2/catch.hpp>
#include <sstream>

#include "tests/unit/error_text.h"

namespace annulus {
namespace {

using Catch::Contains;

std::vector<TomlEntry> read(const std::string& text) {
  std::istringstream stream(text);
  return read_toml(stream, "run.toml");
}

std::string error(const std::string& text) {
  return test::error_of([&] { read(text); });
}

std::string repeated(const std::string& text, std::size_t count) {
  std::string all;
  for (std::size_t i = 0; i < count; ++i) all += text;
  return all;
}

}  // namespace

TEST_CASE("values of a flat TOML file, in order, with line numbers", "[toml]") {
  const auto entries = read("# begins\nout = \"a # b\"\nlr=0.05\n\nsteps = [30, 60]\nnesterov = true\nseed = 7\n");
  REQUIRE(entries.size() == 5);
  CHECK(entries[0].key == "out");
  CHECK(entries[0].line == 2);
  CHECK(entries[0].type == TomlEntry::Type::text);
  CHECK(entries[0].values == std::vector<std::string>{"a # b"});
  CHECK(entries[1].type == TomlEntry::Type::number);
  CHECK(entries[1].values == std::vector<std::string>{"0.05"});
  CHECK(entries[2].is_array);
  CHECK(entries[2].values == std::vector<std::string>{"30", "60"});
  CHECK(entries[2].line == 5);
  CHECK(entries[3].type == TomlEntry::Type::truth);
  CHECK(entries[4].values == std::vector<std::string>{"7"});
}

TEST_CASE("invalid or nested TOML is an error with its line", "[toml]") {
  CHECK_THAT(error("lr = 1\nkey\n"), Contains("run.toml:2:"));
  CHECK_THAT(error("lr =\n"), Contains("run.toml:1:"));
  CHECK_THAT(error("lr = 1\nlr = 2\n"), Contains("run.toml:2:"));
  CHECK_THAT(error("lr = 1\n[train]\nlr = 1\n"), Contains("run.toml:2: train") && Contains("flat"));
  CHECK_THAT(error("a.b = 1\n"), Contains("run.toml:1: a") && Contains("flat"));
  CHECK_THAT(error("day = 2026-01-01\n"), Contains("run.toml:1: day"));
  CHECK_THAT(error("mixed = [1, \"a\"]\n"), Contains("run.toml:1: mixed"));
  CHECK_THAT(error("deep = [[1]]\n"), Contains("run.toml:1: deep"));
}

TEST_CASE("deeply nested and large files are refused", "[toml]") {
  CHECK_THAT(error(repeated("a.", 1000) + "a = 1\n"), Contains("run.toml:1:"));
  CHECK_THAT(error(repeated("\"=\".", 10000) + "a = 1\n"), Contains("run.toml:1:"));
  CHECK_THAT(error("[" + repeated("a.", 20000) + "a]\n"), Contains("run.toml:1:"));
  CHECK_THAT(error("a = " + repeated("[", 20000) + "\n"), Contains("run.toml:1:"));
  CHECK_THAT(error(repeated("# x\n", 20000)), Contains("larger than"));
}

TEST_CASE("strings round-trip", "[toml]") {
  const std::string text = "a # \"b\" \\ 'c' \n\t\r\x01\x7f = [d] größer";
  CHECK(toml_string(text).find('\n') == std::string::npos);
  const auto entries = read("x=" + toml_string(text) + "\n");
  REQUIRE(entries.size() == 1);
  CHECK(entries[0].values == std::vector<std::string>{text});
}

}  // namespace annulus
