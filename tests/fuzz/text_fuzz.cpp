#include "tests/fuzz/source_fuzz.h"

using namespace annulus;

// A document, compressed or not.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static test::FuzzedSource source(kTextSource, {});
  source.read({{"document", {data, data + size}}});
  return 0;
}
