#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "kernels/base/shown_image.h"
#include "kernels/device.h"
#include "src/data/input_plan.h"
#include "src/data/samples.h"

namespace annulus {

// A split's images in a device's memory. Batches then have ShownImages, not pixels (InputPlan::resident), so that a
// step copies almost nothing from the host, and the device moves and mirrors images.
class ResidentImages {
 public:
  // Reads all images. Throws Error if one cannot be read. `device` must outlive this.
  ResidentImages(Device& device, const Samples& samples);

  std::size_t bytes() const { return set_.view().bytes; }

  // Writes the pixels. `shown`: ShownImages.
  void show(std::span<const std::uint8_t> shown, DeviceView pixels);

 private:
  Device& device_;
  const PixelShape shape_;
  Buffer set_, shown_;
};

// Returns a split's images in a GPU's memory if they are small enough, and the plan only moves and mirrors images; else
// null, also if an image cannot be read: then the loader reports it.
std::unique_ptr<ResidentImages> keep_on_gpu(Device& device, const Samples& samples, const InputPlan& plan);

}  // namespace annulus
