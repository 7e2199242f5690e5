#include "tests/fuzz/source_fuzz.h"
#include "tests/unit/idx_files.h"

using namespace annulus;

// Test images or their labels, chosen by the first byte.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::string images = test::idx_header({2, 1, 2}) + "abcd";
  static const std::string labels = test::idx_header({2}) + std::string("\0\1", 2);
  static test::FuzzedSource source(kIdxSource,
                                   {{"train-images-idx3-ubyte", images}, {"train-labels-idx1-ubyte", labels}});
  const auto [of_images, content] = test::choice_and_content(data, size);
  source.read({{"t10k-images-idx3-ubyte", of_images ? content : images},
               {"t10k-labels-idx1-ubyte", of_images ? labels : content}});
  return 0;
}
