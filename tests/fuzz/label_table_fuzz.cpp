#include "src/import/label_table.h"

#include "tests/fuzz/source_fuzz.h"

using namespace annulus;

// A table of labels beside two images.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const test::TemporaryFolder folder;
  static const bool written = [] {
    for (const char* name : {"1.jpg", "b.png"}) test::write_text(folder / name, "");
    return true;
  }();
  for (const char* name : {"labels", "labels.jsonl"}) {
    test::write_text(folder / name, {data, data + (written ? size : 0)});
    try {
      read_label_table(folder / name, folder.path()).names();
    } catch (const Error&) {
    }
  }
  return 0;
}
