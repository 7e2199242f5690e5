#include "kernels/cuda/vendor/nvjpeg_decoder.h"

#include <algorithm>
#include <type_traits>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/cuda/runtime/runtime.h"
#include "kernels/cuda/vendor/nvjpeg_library.h"

namespace annulus::cuda {
namespace {

constexpr std::size_t kMostPixels = 1 << 24;   // per image decoded here
constexpr std::size_t kBatchBytes = 64 << 20;  // per batch of decoded images; a single image may be larger
constexpr std::size_t kAlignment = 256;        // per image
constexpr std::byte kUnwritten{0x5a};          // fills the images' memory before decoding

void check(nvjpegStatus_t status) {
  if (status == NVJPEG_STATUS_SUCCESS) return;
  if (status == NVJPEG_STATUS_ARCH_MISMATCH) fail("this GPU has no hardware decoder for JPEG images");
  fail("nvJPEG failed with status {}: decode with --decode cpu", static_cast<int>(status));
}

// Leaves memory unset: zeroing would wait for the whole GPU.
Buffer allocate(std::size_t bytes) {
  void* address = nullptr;
  cuda::check(cudaMalloc(&address, bytes));
  return {static_cast<std::byte*>(address), bytes, [](std::byte* memory) { cudaFree(memory); }};
}

// Returns whether a call succeeded; false if the status is about the image, else throws Error.
bool succeeds(nvjpegStatus_t status) {
  switch (status) {
    case NVJPEG_STATUS_INVALID_PARAMETER:
    case NVJPEG_STATUS_BAD_JPEG:
    case NVJPEG_STATUS_JPEG_NOT_SUPPORTED:
    case NVJPEG_STATUS_EXECUTION_FAILED:
    case NVJPEG_STATUS_INCOMPLETE_BITSTREAM:
      return false;
    default:
      check(status);
      return true;
  }
}

// Releases nvJPEG's handles.
struct Release {
  void operator()(nvjpegHandle_t handle) const { nvjpeg().destroy(handle); }
  void operator()(nvjpegJpegState_t state) const { nvjpeg().destroy_state(state); }
  void operator()(nvjpegJpegStream_t stream) const { nvjpeg().destroy_stream(stream); }
  void operator()(nvjpegDecodeParams_t params) const { nvjpeg().destroy_params(params); }
};
template <class Handle>
using Owner = std::unique_ptr<std::remove_pointer_t<Handle>, Release>;

template <class Handle, class Create>
Owner<Handle> create(const Create& by) {
  Handle handle = nullptr;
  check(by(&handle));
  return Owner<Handle>(handle);
}

class NvJpegDecoder final : public JpegDecoder {
 public:
  explicit NvJpegDecoder(std::size_t channels)
      : channels_(channels), format_(channels == 1 ? NVJPEG_OUTPUT_Y : NVJPEG_OUTPUT_RGBI) {
    check(library_.set_output_format(params_.get(), format_));
  }

  void decode(std::span<JpegJob> jobs) override {
    std::vector<JpegJob*> batch;
    std::size_t bytes = 0;
    const auto decode_batch = [&] {
      // A single bad image makes all fail.
      if (!batch.empty() && !decode_together(batch) && batch.size() > 1)
        for (JpegJob* job : batch) decode_together({&job, 1});
      batch.clear();
      bytes = 0;
    };
    for (JpegJob& job : jobs) {
      job.decoded = false;
      if (!supports(job)) continue;
      if (bytes + room(job) > kBatchBytes) decode_batch();
      batch.push_back(&job);
      bytes += room(job);
    }
    decode_batch();
  }

 private:
  std::size_t row_bytes(const JpegJob& job) const { return job.width * channels_; }
  // Returns the memory size for an image.
  std::size_t room(const JpegJob& job) const {
    return (job.height * row_bytes(job) + kAlignment - 1) / kAlignment * kAlignment;
  }

  bool supports(const JpegJob& job) {
    int unsupported = 1;
    return job.height * job.width <= kMostPixels &&
           succeeds(library_.parse_header(handle_.get(), job.file.data(), job.file.size(), stream_of_bytes_.get())) &&
           succeeds(library_.supported(handle_.get(), stream_of_bytes_.get(), params_.get(), &unsupported)) &&
           unsupported == 0;
  }

  // Returns memory for decoded images. Keeps smaller pieces used before, because freeing memory waits for the GPU.
  std::byte* memory(std::size_t bytes) {
    if (memory_.empty() || memory_.back().view().bytes < bytes)
      memory_.push_back(allocate(std::max(bytes, memory_.empty() ? 0 : 2 * memory_.back().view().bytes)));
    return memory_.back().view().address;
  }

  // Returns false if nvJPEG reports an error: then no image is decoded.
  bool decode_together(std::span<JpegJob* const> jobs) {
    std::vector<const unsigned char*> files;
    std::vector<std::size_t> sizes;
    std::vector<nvjpegImage_t> images(jobs.size());
    std::size_t bytes = 0;
    for (const JpegJob* job : jobs) bytes += room(*job);
    std::byte* const begin = memory(bytes);
    std::byte* to = begin;
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      files.push_back(jobs[i]->file.data());
      sizes.push_back(jobs[i]->file.size());
      images[i].channel[0] = reinterpret_cast<unsigned char*>(to);
      images[i].pitch[0] = row_bytes(*jobs[i]);
      to += room(*jobs[i]);
    }
    cuda::check(cudaMemsetAsync(begin, std::to_integer<int>(kUnwritten), bytes, stream_.get()));
    // The hardware decoder does not wait for earlier work on the stream.
    cuda::check(cudaStreamSynchronize(stream_.get()));
    if (!succeeds(library_.initialize_batch(handle_.get(), state_.get(), static_cast<int>(jobs.size()), 1, format_)) ||
        !succeeds(library_.decode_batch(handle_.get(), state_.get(), files.data(), sizes.data(), images.data(),
                                        stream_.get())))
      return false;
    for (std::size_t i = 0; i < jobs.size(); ++i)
      cuda::check(cudaMemcpyAsync(jobs[i]->pixels.data(),
                                  images[i].channel[0] + jobs[i]->first_row * row_bytes(*jobs[i]),
                                  jobs[i]->pixels.size(), cudaMemcpyDeviceToHost, stream_.get()));
    cuda::check(cudaStreamSynchronize(stream_.get()));
    // nvJPEG may skip an image and report success.
    for (JpegJob* job : jobs)
      job->decoded = std::ranges::any_of(
          job->pixels, [](std::uint8_t pixel) { return pixel != std::to_integer<std::uint8_t>(kUnwritten); });
    return true;
  }

  const NvJpeg& library_ = nvjpeg();
  const std::size_t channels_;
  const nvjpegOutputFormat_t format_;
  const Owner<nvjpegHandle_t> handle_ = create<nvjpegHandle_t>([this](nvjpegHandle_t* handle) {
    return library_.create(NVJPEG_BACKEND_HARDWARE, nullptr, nullptr, NVJPEG_FLAGS_DEFAULT, handle);
  });
  const Owner<nvjpegJpegState_t> state_ = create<nvjpegJpegState_t>(
      [this](nvjpegJpegState_t* state) { return library_.create_state(handle_.get(), state); });
  const Owner<nvjpegJpegStream_t> stream_of_bytes_ = create<nvjpegJpegStream_t>(
      [this](nvjpegJpegStream_t* stream) { return library_.create_stream(handle_.get(), stream); });
  const Owner<nvjpegDecodeParams_t> params_ = create<nvjpegDecodeParams_t>(
      [this](nvjpegDecodeParams_t* params) { return library_.create_params(handle_.get(), params); });
  const Stream stream_ = make_stream();
  std::vector<Buffer> memory_;
};

}  // namespace

std::unique_ptr<JpegDecoder> make_nvjpeg_decoder(int gpu, std::size_t channels) {
  cuda::check(cudaSetDevice(gpu));
  return std::make_unique<NvJpegDecoder>(channels);
}

}  // namespace annulus::cuda
