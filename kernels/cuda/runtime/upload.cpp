#include "kernels/cuda/runtime/upload.h"

#include <algorithm>
#include <cstring>

namespace annulus::cuda {
namespace {

// An event that was never recorded counts as completed.
void fill(Buffer& pinned, const Event& copied, std::span<const std::byte> host) {
  check(cudaEventSynchronize(copied.get()));
  if (pinned.view().bytes < host.size()) pinned = allocate_pinned(host.size());
  std::memcpy(pinned.view().address, host.data(), host.size());
}

}  // namespace

Uploader::Uploader() {
  for (Slot& slot : small_) slot.pinned = allocate_pinned(kLarge);
}

void Uploader::upload(std::span<const std::byte> host, DeviceView to, cudaStream_t lane) {
  if (host.empty()) return;
  if (host.size() > kLarge) return upload_large(host, to, lane);
  Slot& slot = small_[next_small_++ % small_.size()];
  fill(slot.pinned, slot.copied, host);
  check(cudaMemcpyAsync(to.address, slot.pinned.view().address, host.size(), cudaMemcpyHostToDevice, lane));
  check(cudaEventRecord(slot.copied.get(), lane));
}

void Uploader::upload_large(std::span<const std::byte> host, DeviceView to, cudaStream_t lane) {
  Slot& slot = large_[next_large_++ % large_.size()];
  fill(slot.pinned, slot.copied, host);
  if (slot.staged.view().bytes < host.size()) {
    check(cudaEventSynchronize(slot.consumed.get()));
    slot.staged = allocate_device(host.size());
  }
  const std::byte* const pinned = slot.pinned.view().address;
  std::byte* const staged = slot.staged.view().address;
  check(cudaStreamWaitEvent(stream_.get(), slot.consumed.get(), 0));
  check(cudaMemcpyAsync(staged, pinned, host.size(), cudaMemcpyHostToDevice, stream_.get()));
  check(cudaEventRecord(slot.copied.get(), stream_.get()));
  check(cudaStreamWaitEvent(lane, slot.copied.get(), 0));
  check(cudaMemcpyAsync(to.address, staged, host.size(), cudaMemcpyDeviceToDevice, lane));
  check(cudaEventRecord(slot.consumed.get(), lane));
}

}  // namespace annulus::cuda
