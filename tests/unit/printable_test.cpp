#include "src/io/printable.h"

#include <catch2/catch.hpp>

namespace annulus {

TEST_CASE("control characters in texts from files are escaped", "[printable]") {
  CHECK(printable("cat, größer, 猫, 🐈") == "cat, größer, 猫, 🐈");
  CHECK(printable("\x1b[2J\x07") == "\\x1b[2J\\x07");
  CHECK(printable("a\nb\tc\r") == "a\\nb\\tc\\r");
  CHECK(printable("\x7f\xc2\x9b") == "\\x7f\\xc2\\x9b");             // delete, and one byte's CSI in UTF-8
  CHECK(printable("\xff\xc3(\xe2\x82") == "\\xff\\xc3(\\xe2\\x82");  // invalid and truncated UTF-8
  CHECK(printable("\xc0\xaf\xed\xa0\x80") == "\\xc0\\xaf\\xed\\xa0\\x80");
  CHECK(printable("a\xe2\x80\xae"
                  "b") == "a\\xe2\\x80\\xaeb");  // right to left from here on
  CHECK(printable(std::string_view("\0", 1)) == "\\x00");
  CHECK(printable_lines("a\x1b\nb\n") == "a\\x1b\nb\n");
}

}  // namespace annulus
