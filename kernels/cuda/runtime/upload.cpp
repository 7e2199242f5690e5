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

void Uploader::prefetch(std::span<const std::byte> host) {
  if (host.size() <= kLarge) return;
  stage(host, large_[next_large_ % large_.size()]);
  prefetched_ = host;
}

void Uploader::stage(std::span<const std::byte> host, Slot& slot) {
  fill(slot.pinned, slot.copied, host);
  if (slot.staged.view().bytes < host.size()) {
    check(cudaEventSynchronize(slot.consumed.get()));
    slot.staged = allocate_device(host.size());
  }
  check(cudaStreamWaitEvent(stream_.get(), slot.consumed.get(), 0));
  check(cudaMemcpyAsync(slot.staged.view().address, slot.pinned.view().address, host.size(), cudaMemcpyHostToDevice,
                        stream_.get()));
  check(cudaEventRecord(slot.copied.get(), stream_.get()));
}

void Uploader::upload_large(std::span<const std::byte> host, DeviceView to, cudaStream_t lane) {
  Slot& slot = large_[next_large_++ % large_.size()];
  if (host.data() != prefetched_.data() || host.size() != prefetched_.size()) stage(host, slot);
  prefetched_ = {};
  check(cudaStreamWaitEvent(lane, slot.copied.get(), 0));
  check(cudaMemcpyAsync(to.address, slot.staged.view().address, host.size(), cudaMemcpyDeviceToDevice, lane));
  check(cudaEventRecord(slot.consumed.get(), lane));
}

}  // namespace annulus::cuda
