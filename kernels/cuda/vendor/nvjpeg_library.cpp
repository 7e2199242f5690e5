#include "kernels/cuda/vendor/nvjpeg_library.h"

#include <dlfcn.h>

#include "kernels/base/error.h"

namespace annulus::cuda {
namespace {

template <class Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) fail("nvJPEG cannot be used: {}", dlerror());
}

NvJpeg load() {
  static_assert(NVJPEG_VER_MAJOR == 13, "the library's name has its version");
  void* const library = dlopen("libnvjpeg.so.13", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) fail("nvJPEG cannot be loaded: {}", dlerror());
  NvJpeg found{};
  find(library, "nvjpegCreateEx", found.create);
  find(library, "nvjpegDestroy", found.destroy);
  find(library, "nvjpegJpegStateCreate", found.create_state);
  find(library, "nvjpegJpegStateDestroy", found.destroy_state);
  find(library, "nvjpegJpegStreamCreate", found.create_stream);
  find(library, "nvjpegJpegStreamDestroy", found.destroy_stream);
  find(library, "nvjpegJpegStreamParseHeader", found.parse_header);
  find(library, "nvjpegDecodeParamsCreate", found.create_params);
  find(library, "nvjpegDecodeParamsDestroy", found.destroy_params);
  find(library, "nvjpegDecodeParamsSetOutputFormat", found.set_output_format);
  find(library, "nvjpegDecodeBatchedSupportedEx", found.supported);
  find(library, "nvjpegDecodeBatchedInitialize", found.initialize_batch);
  find(library, "nvjpegDecodeBatched", found.decode_batch);
  return found;
}

}  // namespace

const NvJpeg& nvjpeg() {
  static const NvJpeg library = load();
  return library;
}

}  // namespace annulus::cuda
