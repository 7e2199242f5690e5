// The program's side of the module: replaces the rest of this folder.

#include <dlfcn.h>

#include <filesystem>
#include <string_view>

#include "kernels/base/error.h"
#include "kernels/cuda/module.h"

namespace annulus {
namespace {

constexpr const char* kFile = "libannulus_cuda.so";
constexpr const char* kKernels = "annulus_cuda_kernels";

std::filesystem::path module_file() {
  // Looks beside the program, a folder up for tests, and in lib/annulus for an installed bin/annulus.
  std::error_code error;
  const auto folder = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  const auto parent = folder.parent_path();
  for (const auto& file : {folder / kFile, parent / kFile, parent / "lib/annulus" / kFile})
    if (exists(file, error)) return file;
  fail("there is no {} in {} or {}: build the target gpu", kFile, folder.string(), (parent / "lib/annulus").string());
}

void* load() {
  // Says why the module was not built; empty if built.
  if (constexpr std::string_view kMissing = ANNULUS_CUDA_MISSING; !kMissing.empty())
    fail("this program was built without CUDA ({})", kMissing);
  const auto file = module_file();
  void* const handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) fail("the CUDA module cannot be loaded: {}", dlerror());
  const auto* kernels = static_cast<const CudaKernels*>(dlsym(handle, kKernels));
  if (kernels == nullptr || std::string_view(kernels->interface) != ANNULUS_CUDA_INTERFACE)
    fail("{} belongs to another build of this program: build the target gpu", file.string());
  return handle;
}

CudaModule try_to_load() {
  if (dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL) == nullptr)
    return {.problem = fmt::format("no GPU driver is installed: {}", dlerror())};
  CudaModule module{.expected = true};
  try {
    module.handle = load();
  } catch (const Error& error) {
    module.problem = error.what();
  }
  return module;
}

const CudaKernels* kernels() {
  return static_cast<const CudaKernels*>(find_in_cuda_module(kKernels));
}

}  // namespace

const CudaModule& cuda_module() {
  static const CudaModule module = try_to_load();
  return module;
}

const void* find_in_cuda_module(const char* name) {
  const CudaModule& module = cuda_module();
  return module.handle == nullptr ? nullptr : dlsym(module.handle, name);
}

std::string gpu_warning() {
  const CudaModule& module = cuda_module();
  return module.expected && module.handle == nullptr ? "GPUs are not used: " + module.problem : "";
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

void use_gpu(int number) {
  if (kernels() != nullptr) kernels()->use_gpu(number);
}

GpuMemory gpu_memory() {
  return kernels() == nullptr ? GpuMemory{} : kernels()->gpu_memory();
}

std::optional<double> gpu_joules(int number) {
  return kernels() == nullptr ? std::nullopt : kernels()->gpu_joules(number);
}

double product_flops_per_second(Device& device) {
  return kernels()->product_flops_per_second(device);  // which have made the device
}

std::unique_ptr<JpegDecoder> make_jpeg_decoder(int gpu, std::size_t channels) {
  if (kernels() == nullptr) fail("cannot use a GPU: {}", why_no_gpu());
  return kernels()->make_jpeg_decoder(gpu, channels);
}

std::unique_ptr<Device> make_cuda_device(const DeviceRequest& request) {
  if (kernels() == nullptr) fail("cannot use a GPU: {}", why_no_gpu());
  return kernels()->make_cuda_device(request);
}

}  // namespace annulus
