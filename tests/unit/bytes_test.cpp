#include "src/io/bytes.h"

#include <catch2/catch.hpp>

namespace annulus {

TEST_CASE("sizes in bytes use the largest binary unit that fits") {
  CHECK(format_bytes(0) == "0 B");
  CHECK(format_bytes(1000) == "1000 B");
  CHECK(format_bytes(4096) == "4 KiB");
  CHECK(format_bytes(3u << 19) == "1.5 MiB");
  CHECK(format_bytes(std::size_t{5} << 30) == "5 GiB");
}

}  // namespace annulus
