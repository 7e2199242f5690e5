#include "tests/fuzz/source_fuzz.h"

using namespace annulus;

// An archive of training images, of any kind and compression.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static test::FuzzedSource source(kTarSource, {});
  source.read({{"train.tar", {data, data + size}}});
  return 0;
}
