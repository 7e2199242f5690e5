#include "src/bytes.h"

#include <catch2/catch.hpp>

#include "kernels/error.h"

using namespace annulus;

TEST_CASE("sizes in bytes are read with decimal and binary units") {
  CHECK(parse_bytes("0") == 0);
  CHECK(parse_bytes("1000") == 1000);
  CHECK(parse_bytes("12B") == 12);
  CHECK(parse_bytes("4KB") == 4000);
  CHECK(parse_bytes("4KiB") == 4096);
  CHECK(parse_bytes("64MiB") == 64u << 20);
  CHECK(parse_bytes("3GB") == 3'000'000'000);
}

TEST_CASE("what is not a size in bytes is refused") {
  for (const char* text : {"", "KiB", "4k", "4 KiB", "-4", "1.5MiB", "4KiBs", "99999999999999999999", "99999999999GiB"})
    CHECK_THROWS_AS(parse_bytes(text), Error);
}

TEST_CASE("sizes in bytes are written in the largest binary unit that fits") {
  CHECK(format_bytes(0) == "0 B");
  CHECK(format_bytes(1000) == "1000 B");
  CHECK(format_bytes(4096) == "4 KiB");
  CHECK(format_bytes(3u << 19) == "1.5 MiB");
  CHECK(format_bytes(std::size_t{5} << 30) == "5 GiB");
}
