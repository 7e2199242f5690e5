#pragma once

#include "kernels/cuda/ops/loops/context.h"
#include "kernels/cuda/ops/update/loss_scaling.h"
#include "kernels/cuda/runtime/lane_clock.h"
#include "kernels/cuda/runtime/recording.h"
#include "kernels/cuda/runtime/upload.h"
#include "kernels/device.h"

namespace annulus::cuda {

// A GPU: cuDNN, cuBLASLt and our own kernels, in order on a single stream. Calls enqueue work, which is done later.
class CudaDevice final : public Device {
 public:
  explicit CudaDevice(const DeviceRequest& request);
  ~CudaDevice() override;

  cudaStream_t lane() const { return context_.lane.get(); }  // within run_beside() the lane beside it
  int number() const { return number_; }
  Precision precision() const { return context_.precision; }

  std::unique_ptr<Op> plan(const Operation& operation, const std::vector<TensorSpec>& inputs, Mode mode,
                           const std::vector<TensorSpec>& parameters) override;
  std::unique_ptr<Update> plan(const UpdateRule& rule, const UpdateArenas& arenas,
                               const std::vector<UpdateSegment>& segments) override;
  TensorSpec plain(const Shape& shape, DataType type) override;
  TensorSpec values(const Shape& shape) override;
  Buffer allocate(std::size_t bytes) override;
  Buffer allocate_pinned(std::size_t bytes) override;
  void upload(std::span<const std::byte> host, DeviceView to) override;
  void prefetch(std::span<const std::byte> host) override { uploader_.prefetch(host); }
  void download(DeviceView from, std::span<std::byte> host) override;
  void peek(DeviceView from, std::span<std::byte> host) override;
  void write(std::span<const float> host, const TensorSpec& spec, DeviceView to) override;
  void read(const TensorSpec& spec, DeviceView from, std::span<float> host) override;
  void zero(DeviceView to) override;
  void copy(DeviceView from, DeviceView to) override;
  void scale(DeviceView from, float factor, DeviceView to) override;
  void add_scaled(DeviceView from, float factor, DeviceView to) override;
  void add(DeviceView from, DeviceView to, DataType type) override;
  void swap(DeviceView a, DeviceView b) override;
  void add_rows(DeviceView from, DataType type, DeviceView index, std::size_t width, DeviceView to) override;
  void cast_params(DeviceView weights, DeviceView copies) override;
  void add_hash(DeviceView from, DeviceView to) override;
  void show_images(DeviceView set, DeviceView shown, const PixelShape& shape, DeviceView to) override;
  LossScaling* loss_scaling() override { return scaling_.get(); }
  void finish() override;
  Mark mark() override;
  double seconds(const Mark& mark) override { return mark.number == 0 ? mark.seconds : clock_.seconds(mark.number); }
  void await(const Mark& mark) override { clock_.await(lane(), mark.number); }
  void run_beside(const std::function<void()>& work) override;
  std::unique_ptr<Recording> record(const std::function<void()>& work) override;

 private:
  const int number_;
  Context context_;
  LaneClock clock_;
  Recorder* recorder_ = nullptr;  // in record()
  Uploader uploader_;
  Stream side_;    // for peek()
  Buffer peeked_;  // pinned memory, too
  Stream beside_;  // for run_beside()
  Event beside_done_ = make_event();
  std::unique_ptr<DeviceLossScaling> scaling_;
  Buffer ones_;  // used as loss_scale and unscale if there is no loss scaling
};

}  // namespace annulus::cuda
