// The program's side of the module: replaces the rest of this folder.

#include <dlfcn.h>

#include <filesystem>
#include <string_view>

#include "kernels/base/error.h"
#include "kernels/cuda/make_cuda_device.h"
#include "kernels/cuda/module.h"

namespace annulus {
namespace {

constexpr const char* kFile = "libannulus_cuda.so";
constexpr const char* kKernels = "annulus_cuda_kernels";

CudaModule load() {
  // Why it was not built; empty if it was.
  if (constexpr std::string_view kMissing = ANNULUS_CUDA_MISSING; !kMissing.empty())
    return {.handle = nullptr, .problem = fmt::format("this program was built without CUDA ({})", kMissing)};
  if (dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL) == nullptr)
    return {.handle = nullptr, .problem = fmt::format("no GPU driver is installed: {}", dlerror())};
  // Beside the program, or, of tests, one folder up.
  std::error_code error;
  const auto folder = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  auto file = folder / kFile;
  if (!exists(file, error)) file = folder.parent_path() / kFile;
  CudaModule module{.handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL), .problem = {}};
  if (module.handle == nullptr) {
    module.problem = fmt::format("the CUDA module cannot be loaded: {}", dlerror());
    return module;
  }
  const auto* kernels = static_cast<const CudaKernels*>(dlsym(module.handle, kKernels));
  if (kernels == nullptr || std::string_view(kernels->version) != ANNULUS_VERSION)
    return {.handle = nullptr,
            .problem = fmt::format("{} is of another version of this program: install both anew", file.string())};
  return module;
}

const CudaKernels* kernels() {
  return static_cast<const CudaKernels*>(find_in_cuda_module(kKernels));
}

}  // namespace

const CudaModule& cuda_module() {
  static const CudaModule module = load();
  return module;
}

const void* find_in_cuda_module(const char* name) {
  const CudaModule& module = cuda_module();
  return module.handle == nullptr ? nullptr : dlsym(module.handle, name);
}

std::string why_no_gpu() {
  return kernels() == nullptr ? cuda_module().problem : kernels()->why_no_gpu();
}

int gpus_here() {
  return kernels() == nullptr ? 0 : kernels()->gpus_here();
}

std::string gpu_name(int number) {
  return kernels() == nullptr ? "" : kernels()->gpu_name(number);
}

std::unique_ptr<Device> make_cuda_device(const DeviceRequest& request) {
  if (kernels() == nullptr) fail("cannot use a GPU: {}", why_no_gpu());
  return kernels()->make_cuda_device(request);
}

}  // namespace annulus
