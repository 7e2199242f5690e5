#include "src/train/dry_run.h"

#include <catch2/catch.hpp>

namespace annulus {

TEST_CASE("a dry run names the ranks that have equal shares") {
  CHECK(shares_text({64}) == "64 on rank 0");
  CHECK(shares_text({17, 17, 16}) == "17 on ranks 0-1, 16 on rank 2");
  CHECK(shares_text({2, 1, 1, 0}) == "2 on rank 0, 1 on ranks 1-2, 0 on rank 3");
}

}  // namespace annulus
