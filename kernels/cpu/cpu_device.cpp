#include "kernels/cpu/cpu_device.h"

#include <omp.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/base/allowed_resources.h"
#include "kernels/base/error.h"
#include "kernels/base/host_memory.h"
#include "kernels/cpu/loops/add_hash.h"
#include "kernels/cpu/loops/elementwise.h"
#include "kernels/cpu/loops/show_images.h"
#include "kernels/cpu/loops/threads.h"
#include "kernels/cpu/plan/dnnl_memory.h"
#include "kernels/cpu/plan/operations.h"
#include "kernels/cpu/update.h"
#include "kernels/instruction_set.h"

namespace annulus {
namespace cpu {
namespace {

std::string_view isa() {
  constexpr std::array<std::string_view, 5> kNames{"SSE4.1", "AVX", "AVX2", "AVX-512", "AMX"};
  return kNames.at(static_cast<std::size_t>(used_instruction_set()));
}

std::string description(int threads) {
  const auto* version = dnnl::version();
  return fmt::format("cpu, {} thread{}, oneDNN {}.{}.{} with {}", threads, threads == 1 ? "" : "s", version->major,
                     version->minor, version->patch, isa());
}

// The row-major layout of a tensor's elements. (oneDNN has more dimensions for some weights.)
dnnl::memory::desc plain_layout_of(const TensorSpec& spec) {
  const auto dims = desc(spec).dims();
  return plain_layout(Shape(dims.begin(), dims.end()));
}

}  // namespace

CpuDevice::CpuDevice(int threads) : Device({.description = description(threads)}) {
  compute_with(threads);
}

std::unique_ptr<Op> CpuDevice::plan(const Operation& operation, const std::vector<TensorSpec>& inputs, Mode mode,
                                    const std::vector<TensorSpec>& parameters) {
  try {
    return std::visit([&](const auto& o) { return cpu::plan(o, inputs, mode, parameters); }, operation);
  } catch (const dnnl::error& error) {
    fail("oneDNN cannot plan {}{}: {}", name(operation), inputs.empty() ? "" : " over " + to_string(inputs[0].shape),
         error.what());
  }
}

std::unique_ptr<Update> CpuDevice::plan(const UpdateRule& rule, const UpdateArenas& arenas,
                                        const std::vector<UpdateSegment>& segments) {
  return plan_update(rule, arenas, segments);
}

TensorSpec CpuDevice::plain(const Shape& shape, DataType type) {
  return {shape, type, std::make_shared<DnnlLayout>(plain_layout(shape, type))};
}

Buffer CpuDevice::allocate(std::size_t bytes) {
  return allocate_host(bytes);
}

void CpuDevice::upload(std::span<const std::byte> host, DeviceView to) {
  std::ranges::copy(host, to.address);
}

void CpuDevice::download(DeviceView from, std::span<std::byte> host) {
  std::copy_n(from.address, host.size(), host.begin());
}

void CpuDevice::write(std::span<const float> host, const TensorSpec& spec, DeviceView to) {
  const dnnl::memory source(plain_layout_of(spec), engine(), const_cast<float*>(host.data()));
  const dnnl::memory target = memory_at(desc(spec), to);
  Primitive(dnnl::reorder(source, target), {{DNNL_ARG_FROM, source}, {DNNL_ARG_TO, target}}).run();
}

void CpuDevice::read(const TensorSpec& spec, DeviceView from, std::span<float> host) {
  const dnnl::memory source = memory_at(desc(spec), from);
  const dnnl::memory target(plain_layout_of(spec), engine(), host.data());
  Primitive(dnnl::reorder(source, target), {{DNNL_ARG_FROM, source}, {DNNL_ARG_TO, target}}).run();
}

void CpuDevice::zero(DeviceView to) {
  std::memset(to.address, 0, to.bytes);
}

void CpuDevice::copy(DeviceView from, DeviceView to) {
  cpu::copy(floats(from), floats(to));
}

void CpuDevice::scale(DeviceView from, float factor, DeviceView to) {
  cpu::scale(floats(from), factor, floats(to));
}

void CpuDevice::add_scaled(DeviceView from, float factor, DeviceView to) {
  cpu::add_scaled(floats(from), factor, floats(to));
}

void CpuDevice::add(DeviceView from, DeviceView to, DataType) {
  cpu::add(floats(from), floats(to));
}

void CpuDevice::swap(DeviceView a, DeviceView b) {
  std::ranges::swap_ranges(floats(a), floats(b));
}

void CpuDevice::add_rows(DeviceView from, DataType, DeviceView index, std::size_t width, DeviceView to) {
  cpu::add_rows(floats(from), integers(index), width, floats(to));
}

void CpuDevice::add_hash(DeviceView from, DeviceView to) {
  cpu::add_hash(floats(from), *reinterpret_cast<ArrayHash*>(to.address));
}

void CpuDevice::show_images(DeviceView set, DeviceView shown, const PixelShape& shape, DeviceView to) {
  const auto pixels = [](DeviceView view) {
    return std::span(reinterpret_cast<std::uint8_t*>(view.address), view.bytes);
  };
  const auto* const images = reinterpret_cast<const ShownImage*>(shown.address);
  cpu::show_images(pixels(set), {images, shown.bytes / sizeof(ShownImage)}, shape, pixels(to));
}

}  // namespace cpu

int processors_allowed() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  const int bound = sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : omp_get_num_procs();
  return std::min(bound, allowed_processors().count);
}

}  // namespace annulus
