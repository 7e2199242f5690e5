#include "kernels/base/error.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cuda/make_cuda_device.h"

namespace annulus {

namespace {

std::string gpu_advice() {
  const std::string why = why_no_gpu();
  return why.empty() ? "use --device cuda" : "use a GPU (" + why + ")";
}

}  // namespace

std::unique_ptr<Recording> Device::record(const std::function<void()>&) {
  fail("{} does not support recording", info().description);
}

std::unique_ptr<Device> make_device(const DeviceRequest& request) {
  if (request.name != "auto" && request.name != "cpu" && request.name != "cuda")
    fail("unknown device \"{}\" (auto, cpu or cuda)", request.name);
  if (request.name == "cuda" || (request.name == "auto" && gpus_here() > 0)) return make_cuda_device(request);
  if (request.precision.value_or(Precision::fp32) != Precision::fp32)
    fail("device cpu supports only fp32, not {}: leave out --precision, or {}", to_string(*request.precision),
         gpu_advice());
  return std::make_unique<cpu::CpuDevice>(request.threads > 0 ? request.threads : processors_allowed());
}

std::unique_ptr<Device> make_device(const std::string& name, int threads) {
  return make_device(DeviceRequest{.name = name, .threads = threads});
}

}  // namespace annulus
