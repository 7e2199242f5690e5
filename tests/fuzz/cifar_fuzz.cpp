#include <algorithm>

#include "tests/fuzz/source_fuzz.h"

using namespace annulus;

// The names of the classes, or a batch whose records are padded, because they are longer than fuzzed inputs.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::string names = "a\nb\nc\nd\ne\nf\ng\nh\ni\nj\n", record(3073, '\1');
  static test::FuzzedSource source(kCifarSource, {{"test_batch.bin", record}});
  const auto [of_names, content] = test::choice_and_content(data, size);
  source.read(
      {{"batches.meta.txt", of_names ? content : names},
       {"data_batch_1.bin", of_names ? record : record.substr(std::min(record.size(), content.size())) + content}});
  return 0;
}
