// Measures GPUs: memory, energy and speed.

#include <algorithm>
#include <array>
#include <optional>

#include "kernels/base/error.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/make_cuda_device.h"
#include "kernels/cuda/runtime/runtime.h"
#include "kernels/cuda/vendor/matmul.h"
#include "kernels/cuda/vendor/nvml_library.h"
#include "kernels/cuda/vendor/stopwatch.h"

namespace annulus {
namespace {

double product_seconds(cuda::MatmulPlanner& planner, Precision precision, std::size_t size) {
  const std::size_t bytes = size * size * size_of(value_type(precision));
  const Buffer a = cuda::allocate_numbers(bytes), b = cuda::allocate_numbers(bytes), to = cuda::allocate_device(bytes);
  const auto product = planner.plan({.precision = precision, .rows = size, .columns = size, .inner = size});
  const Buffer workspace = cuda::allocate_device(product->workspace_bytes());
  const auto run = [&](cudaStream_t stream) {
    product->run({a.view().address, b.view().address, to.view().address}, workspace.view().address, stream);
  };
  return 1e-6 * cuda::Stopwatch().measure(run);
}

}  // namespace

GpuMemory gpu_memory() {
  std::size_t free = 0, total = 0;
  const bool known = cudaMemGetInfo(&free, &total) == cudaSuccess;
  return {.arrays = cuda::allocated_bytes(), .in_use = known ? total - free : 0};
}

std::optional<double> gpu_joules(int number) {
  std::array<char, 32> bus{};
  void* gpu = nullptr;
  unsigned long long millijoules = 0;
  const cuda::Nvml* const nvml = cuda::nvml();
  const bool known = nvml != nullptr &&
                     cudaDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), number) == cudaSuccess &&
                     nvml->device_by_bus_id(bus.data(), &gpu) == 0 && nvml->total_energy(gpu, &millijoules) == 0;
  return known ? std::optional(1e-3 * static_cast<double>(millijoules)) : std::nullopt;
}

double product_flops_per_second(Device& device) {
  constexpr std::size_t kSmallest = 64, kLargest = 8192;
  constexpr double kLongEnough = 5e-4;  // seconds
  const Precision precision = dynamic_cast<cuda::CudaDevice&>(device).precision();
  const auto planner = cuda::make_matmul_planner();
  double fastest = 0, seconds = 0;
  for (std::size_t size = kSmallest; size <= kLargest && seconds < kLongEnough; size *= 2) {
    try {
      seconds = product_seconds(*planner, precision, size);
    } catch (const Error&) {  // no memory for larger ones
      break;
    }
    const auto n = static_cast<double>(size);
    fastest = std::max(fastest, 2 * n * n * n / seconds);
  }
  return fastest;
}

}  // namespace annulus
