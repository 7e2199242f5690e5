#pragma once

#include "kernels/device.h"

namespace annulus::cpu {

// The process's processors as a device: oneDNN and our own kernels, on `threads` threads. The lane is the calling
// thread: all work is done when a call returns.
class CpuDevice : public Device {
 public:
  explicit CpuDevice(int threads);

  std::unique_ptr<Op> plan(const Operation& operation, const std::vector<TensorSpec>& inputs, Mode mode,
                           const std::vector<TensorSpec>& parameters) override;
  std::unique_ptr<Update> plan(const UpdateRule& rule, const UpdateArenas& arenas,
                               const std::vector<UpdateSegment>& segments) override;
  TensorSpec plain(const Shape& shape, DataType type) override;
  Buffer allocate(std::size_t bytes) override;
  Buffer allocate_pinned(std::size_t bytes) override { return allocate(bytes); }
  void upload(std::span<const std::byte> host, DeviceView to) override;
  void download(DeviceView from, std::span<std::byte> host) override;
  void write(std::span<const float> host, const TensorSpec& spec, DeviceView to) override;
  void read(const TensorSpec& spec, DeviceView from, std::span<float> host) override;
  void zero(DeviceView to) override;
  void copy(DeviceView from, DeviceView to) override;
  void scale(DeviceView from, float factor, DeviceView to) override;
  void add_scaled(DeviceView from, float factor, DeviceView to) override;
  void add(DeviceView from, DeviceView to, DataType type) override;
  void swap(DeviceView a, DeviceView b) override;
  void add_rows(DeviceView from, DataType type, DeviceView index, std::size_t width, DeviceView to) override;
  void cast_params(DeviceView, DeviceView) override {}  // it computes with the weights themselves
  void add_hash(DeviceView from, DeviceView to) override;
  void show_images(DeviceView set, DeviceView shown, const PixelShape& shape, DeviceView to) override;
};

}  // namespace annulus::cpu
