#include "src/step/resident_images.h"

#include <algorithm>
#include <vector>

#include "kernels/base/error.h"

namespace annulus {
namespace {

PixelShape shape_of(const DatasetInfo& info) {
  return {static_cast<std::uint32_t>(info.height), static_cast<std::uint32_t>(info.width),
          static_cast<std::uint32_t>(info.channels)};
}

}  // namespace

ResidentImages::ResidentImages(Device& device, const Samples& samples)
    : device_(device), shape_(shape_of(samples.info())), set_(device.allocate(samples.info().size * shape_.bytes())) {
  constexpr std::size_t kRead = std::size_t{8} << 20;  // bytes at a time
  const std::size_t size = samples.info().size, most = std::max<std::size_t>(kRead / shape_.bytes(), 1);
  std::vector<std::uint8_t> pixels;
  for (std::size_t begin = 0; begin < size; begin += most) {
    const std::size_t count = std::min(most, size - begin);
    pixels.resize(count * shape_.bytes());
    for (std::size_t i = 0; i < count; ++i)
      samples.read_image(begin + i, std::span(pixels).subspan(i * shape_.bytes(), shape_.bytes()));
    device.upload(std::as_bytes(std::span(pixels)), set_.view().slice(begin * shape_.bytes(), pixels.size()));
  }
}

void ResidentImages::show(std::span<const std::uint8_t> shown, DeviceView pixels) {
  if (shown_.view().bytes < shown.size()) shown_ = device_.allocate(shown.size());
  const DeviceView to = shown_.view().slice(0, shown.size());
  device_.upload(std::as_bytes(shown), to);
  device_.show_images(set_.view(), to, shape_, pixels);
}

std::unique_ptr<ResidentImages> keep_on_gpu(Device& device, const Samples& samples, const InputPlan& plan) try {
  constexpr std::size_t kMost = std::size_t{1} << 30;  // bytes, which are read before the first step
  constexpr std::size_t kShare = 16;                   // of the GPU's free memory
  const DatasetInfo& info = samples.info();
  if (device.info().shares_host_memory || !plan.only_moves(info)) return nullptr;
  if (info.size * info.image_bytes() > std::min(kMost, device.info().free_bytes / kShare)) return nullptr;
  return std::make_unique<ResidentImages>(device, samples);
} catch (const Error&) {
  return nullptr;
}

}  // namespace annulus
