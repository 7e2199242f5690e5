#include <cmath>

#include "kernels/base/error.h"
#include "src/weights/safetensors.h"
#include "tests/unit/temporary_folder.h"

using namespace annulus;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const test::TemporaryFolder folder;
  static const std::filesystem::path path = folder / "weights.safetensors";
  test::write_text(path, {data, data + size});
  try {
    const SafetensorsFile file(path);
    for (const StoredTensor& tensor : file.tensors()) {
      if (tensor.begin > tensor.end || tensor.end > size) __builtin_trap();
      try {
        const std::vector<float> values = file.read(tensor);
        if (values.size() != elements(tensor.shape)) __builtin_trap();
        for (const float value : values)
          if (!std::isfinite(value)) __builtin_trap();
      } catch (const Error&) {
      }
    }
  } catch (const Error&) {
  }
  return 0;
}
