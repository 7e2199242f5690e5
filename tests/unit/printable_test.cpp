#include "src/io/printable.h"
#include "src/io/shortened.h"

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

TEST_CASE("long names in messages are shortened", "[printable]") {
  CHECK(shortened("node a (Conv): short") == "node a (Conv): short");
  const std::string name(2'000'000, 'n');
  const std::string one = shortened("node " + name + " (Conv): its end");
  CHECK(one == "node " + std::string(200, 'n') + "...[1999700 bytes]..." + std::string(100, 'n') + " (Conv): its end");
  std::string words = "begin";
  for (int i = 0; i < 100'000; ++i) words += " word";
  const std::string many = shortened(words + " end\nsecond");
  CHECK(many.size() < 1100);
  CHECK(many.starts_with("begin word"));
  CHECK(many.ends_with(" end\nsecond"));
  std::string wide;
  for (int i = 0; i < 1000; ++i) wide += "\u732b";
  CHECK(printable(shortened("a" + wide)) == shortened("a" + wide));  // no character is cut
}

}  // namespace annulus
