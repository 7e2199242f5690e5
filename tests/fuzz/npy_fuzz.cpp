#include "tests/fuzz/source_fuzz.h"

using namespace annulus;

// Training images or their labels, chosen by the first byte.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const auto npy = [](const std::string& shape, const std::string& elements) {
    const std::string header = "{'descr': '|u1', 'fortran_order': False, 'shape': " + shape + ", }\n";
    return "\x93NUMPY" + std::string{'\1', '\0', static_cast<char>(header.size()), '\0'} + header + elements;
  };
  static const std::string images = npy("(2, 1, 2)", "abcd"), labels = npy("(2,)", "\1\1");
  static test::FuzzedSource source(kNpySource, {});
  const auto [of_images, content] = test::choice_and_content(data, size);
  source.read({{"train_images.npy", of_images ? content : images}, {"train_labels.npy", of_images ? labels : content}});
  return 0;
}
