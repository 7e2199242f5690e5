#include "kernels/cuda/cuda_device.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/base/error.h"
#include "kernels/base/on_error.h"
#include "kernels/cuda/make_cuda_device.h"
#include "kernels/cuda/ops/loops/add_hash.h"
#include "kernels/cuda/ops/loops/elementwise.h"
#include "kernels/cuda/ops/loops/show_images.h"
#include "kernels/cuda/ops/plan/operations.h"
#include "kernels/cuda/runtime/compute_lane.h"
#include "kernels/cuda/runtime/layout.h"
#include "kernels/cuda/runtime/number.h"
#include "kernels/cuda/vendor/nvjpeg_decoder.h"
#include "kernels/cuda/vendor/tuned_matmul.h"

namespace annulus {
namespace cuda {
namespace {

constexpr int kOldestMajor = 8;  // compute capability; older GPUs have no bf16 and no TF32

cudaDeviceProp properties(int number) {
  cudaDeviceProp found{};
  check(cudaGetDeviceProperties(&found, number));
  return found;
}

Precision precision_of(const DeviceRequest& request) {
  return request.precision.value_or(Precision::bf16);
}

Context make_context(const DeviceRequest& request) {
  check(cudaSetDevice(request.gpu));
  const cudaDeviceProp gpu = properties(request.gpu);
  if (gpu.major < kOldestMajor)
    fail("{} has compute capability {}.{}, but at least {}.0 is needed: use --device cpu", gpu.name, gpu.major,
         gpu.minor, kOldestMajor);
  Context context{};
  context.precision = precision_of(request);
  context.multiprocessors = gpu.multiProcessorCount;
  context.lane = make_stream();
  const auto budget = std::make_shared<TuningBudget>(request.tuning);
  context.convolutions = make_convolution_planner(request.tuning, budget);
  context.matmuls = make_matmul_planner(request.tuning, budget);
  context.attention = make_attention_planner(request.tuning, budget);
  return context;
}

std::size_t free_bytes(int number) {
  std::size_t free = 0, total = 0;
  check(cudaSetDevice(number));
  check(cudaMemGetInfo(&free, &total));
  return free;
}

DeviceInfo info_of(const DeviceRequest& request) {
  constexpr double kGiB = 1 << 30;
  const Precision precision = precision_of(request);
  return {.description =
              fmt::format("cuda, {}, {:.0f} GiB, {}", gpu_name(request.gpu),
                          static_cast<double>(properties(request.gpu).totalGlobalMem) / kGiB, to_string(precision)),
          .value_type = annulus::value_type(precision),
          .shares_host_memory = false,
          .records = true,
          .free_bytes = free_bytes(request.gpu) / static_cast<std::size_t>(request.sharing)};
}

}  // namespace

CudaDevice::CudaDevice(const DeviceRequest& request)
    : Device(info_of(request)),
      number_(request.gpu),
      context_(make_context(request)),
      side_(make_stream()),
      beside_(make_stream()) {
  if (context_.precision == Precision::fp16) {
    scaling_ = std::make_unique<DeviceLossScaling>(context_);
    context_.loss_scale = scaling_->scale();
    context_.unscale = scaling_->unscale();
    context_.skip = scaling_->skip();
    return;
  }
  constexpr std::array<float, 2> ones{1, 1};
  ones_ = allocate(sizeof ones);
  upload(std::as_bytes(std::span(ones)), ones_.view());
  context_.loss_scale = reinterpret_cast<const float*>(ones_.view().address);
  context_.unscale = context_.loss_scale + 1;
}

// Work in progress still uses the members that are destroyed next.
CudaDevice::~CudaDevice() {
  cudaDeviceSynchronize();
}

std::unique_ptr<Op> CudaDevice::plan(const Operation& operation, const std::vector<TensorSpec>& inputs, Mode mode,
                                     const std::vector<TensorSpec>&) {
  return cuda::plan_any(operation, inputs, mode, context_);
}

std::unique_ptr<Update> CudaDevice::plan(const UpdateRule& rule, const UpdateArenas& arenas,
                                         const std::vector<UpdateSegment>& segments) {
  return plan_update(rule, arenas, segments, context_);
}

TensorSpec CudaDevice::plain(const Shape& shape, DataType type) {
  return {shape, type, std::make_shared<Plain>(shape, type)};
}

TensorSpec CudaDevice::values(const Shape& shape) {
  return value_spec(shape, info().value_type);
}

Buffer CudaDevice::allocate(std::size_t bytes) {
  return allocate_device(bytes);
}

Buffer CudaDevice::allocate_pinned(std::size_t bytes) {
  return cuda::allocate_pinned(bytes);
}

void CudaDevice::upload(std::span<const std::byte> host, DeviceView to) {
  uploader_.upload(host, to, lane());
}

void CudaDevice::download(DeviceView from, std::span<std::byte> host) {
  check(cudaMemcpyAsync(host.data(), from.address, host.size(), cudaMemcpyDeviceToHost, lane()));
  finish();
}

// Through pinned memory, because every step waits for it: to other memory the driver copies in several stages.
void CudaDevice::peek(DeviceView from, std::span<std::byte> host) {
  if (peeked_.view().bytes < host.size()) peeked_ = allocate_pinned(host.size());
  std::byte* const pinned = peeked_.view().address;
  check(cudaMemcpyAsync(pinned, from.address, host.size(), cudaMemcpyDeviceToHost, side_.get()));
  check(cudaStreamSynchronize(side_.get()));
  std::memcpy(host.data(), pinned, host.size());
}

void CudaDevice::write(std::span<const float> host, const TensorSpec& spec, DeviceView to) {
  std::vector<float> packed(host.begin(), host.end());
  if (const auto* layout = dynamic_cast<const ChannelsLast*>(spec.layout.get())) {
    packed.resize(layout->count());
    layout->pack(host, packed);
  }
  upload(encode(packed, spec.type), to);
}

void CudaDevice::read(const TensorSpec& spec, DeviceView from, std::span<float> host) {
  std::vector<std::byte> bytes(spec.layout->bytes());
  download(from, bytes);
  const std::vector<float> packed = decode(bytes, spec.type);
  if (const auto* layout = dynamic_cast<const ChannelsLast*>(spec.layout.get()))
    layout->unpack(packed, host);
  else
    std::ranges::copy(packed, host.begin());
}

void CudaDevice::zero(DeviceView to) {
  check(cudaMemsetAsync(to.address, 0, to.bytes, lane()));
}

void CudaDevice::copy(DeviceView from, DeviceView to) {
  check(cudaMemcpyAsync(to.address, from.address, to.bytes, cudaMemcpyDefault, lane()));
}

void CudaDevice::scale(DeviceView from, float factor, DeviceView to) {
  cuda::scale(from, factor, to, context_);
}

void CudaDevice::add_scaled(DeviceView from, float factor, DeviceView to) {
  cuda::add_scaled(from, factor, to, context_);
}

void CudaDevice::add(DeviceView from, DeviceView to, DataType type) {
  cuda::add(from, to, type, context_);
}

void CudaDevice::swap(DeviceView a, DeviceView b) {
  cuda::swap(a, b, context_);
}

void CudaDevice::add_rows(DeviceView from, DataType type, DeviceView index, std::size_t width, DeviceView to) {
  cuda::add_rows(from, type, index, width, to, context_);
}

void CudaDevice::cast_params(DeviceView weights, DeviceView copies) {
  cuda::cast_params(weights, copies, context_);
}

void CudaDevice::add_hash(DeviceView from, DeviceView to) {
  cuda::add_hash(from, to, context_);
}

void CudaDevice::show_images(DeviceView set, DeviceView shown, const PixelShape& shape, DeviceView to) {
  cuda::show_images(set, shown, shape, to, context_);
}

void CudaDevice::finish() {
  check(cudaStreamSynchronize(lane()));
}

// All operations enqueue their work on the context's lane.
void CudaDevice::run_beside(const std::function<void()>& work) {
  const auto change = [this] { std::swap(context_.lane, beside_); };
  change();
  {
    const OnError back(change);
    work();
  }
  change();
  check(cudaEventRecord(beside_done_.get(), beside_.get()));
  check(cudaStreamWaitEvent(lane(), beside_done_.get()));
}

Mark CudaDevice::mark() {
  if (recorder_ == nullptr) return {0, clock_.mark(lane())};
  recorder_->mark();
  return {};
}

std::unique_ptr<Recording> CudaDevice::record(const std::function<void()>& work) {
  Recorder recorder(lane(), clock_);
  recorder_ = &recorder;
  const auto end = [this] { recorder_ = nullptr; };
  const OnError ended(end);
  auto recording = recorder.record(work);
  end();
  return recording;
}

cudaStream_t compute_lane(Device& device) {
  return dynamic_cast<CudaDevice&>(device).lane();
}

}  // namespace cuda

std::string gpu_warning() {
  return "";
}

std::string why_no_gpu() {
  int driver = 0, count = 0;
  if (cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0) return "there is no NVIDIA driver";
  const cudaError_t result = cudaGetDeviceCount(&count);
  if (result != cudaSuccess) {
    cudaGetLastError();  // or the next call to cudaGetLastError() would return it
    return cudaGetErrorString(result);
  }
  return count > 0 ? "" : "no GPU found";
}

int gpus_here() {
  int count = 0;
  return why_no_gpu().empty() && cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

std::string gpu_name(int number) {
  std::array<char, 32> bus{};
  cuda::check(cudaDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), number));
  return fmt::format("{}, {}", bus.data(), cuda::properties(number).name);
}

void use_gpu(int number) {
  cudaSetDevice(number);
  cudaGetLastError();  // or the next call to cudaGetLastError() would return this error
}

std::unique_ptr<JpegDecoder> make_jpeg_decoder(int gpu, std::size_t channels) {
  return cuda::make_nvjpeg_decoder(gpu, channels);
}

std::unique_ptr<Device> make_cuda_device(const DeviceRequest& request) {
  if (const std::string why = why_no_gpu(); !why.empty()) fail("cannot use a GPU: {}; use --device cpu", why);
  if (request.gpu >= gpus_here()) fail("there is no GPU {}: {} found", request.gpu, gpus_here());
  return std::make_unique<cuda::CudaDevice>(request);
}

}  // namespace annulus
