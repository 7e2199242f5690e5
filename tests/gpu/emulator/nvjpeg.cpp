#include <nvjpeg.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "kernels/base/error.h"
#include "kernels/cuda/vendor/nvjpeg_library.h"
#include "src/data/image_codec.h"
#include "tests/gpu/emulator/device_memory.h"

// Decodes with libjpeg. With ANNULUS_EMULATED_NVJPEG=missing there is no library, with =unsupported the GPU has no
// decoder, and with =skipping it skips the last image of each batch, as some GPUs do, and reports success.

struct nvjpegHandle {};
struct nvjpegJpegState {
  std::size_t batch = 0;
  nvjpegOutputFormat_t format{};
};
struct nvjpegJpegStream {
  annulus::ImageSize size;
};
struct nvjpegDecodeParams {
  nvjpegOutputFormat_t format;
};

namespace {

// The hardware decoder supports no smaller images.
constexpr std::size_t kLeastSide = 16;

bool emulates(std::string_view what) {
  const char* const value = std::getenv("ANNULUS_EMULATED_NVJPEG");
  return value != nullptr && value == what;
}

bool is_known(nvjpegOutputFormat_t format) {
  return format == NVJPEG_OUTPUT_Y || format == NVJPEG_OUTPUT_RGBI;
}

template <class Handle>
nvjpegStatus_t create(Handle** handle) {
  *handle = new Handle{};
  return NVJPEG_STATUS_SUCCESS;
}

template <class Handle>
nvjpegStatus_t destroy(Handle* handle) {
  delete handle;
  return NVJPEG_STATUS_SUCCESS;
}

}  // namespace

nvjpegStatus_t nvjpegCreateEx(nvjpegBackend_t, nvjpegDevAllocator_t*, nvjpegPinnedAllocator_t*, unsigned,
                              nvjpegHandle_t* handle) {
  return emulates("unsupported") ? NVJPEG_STATUS_ARCH_MISMATCH : create(handle);
}
nvjpegStatus_t nvjpegDestroy(nvjpegHandle_t handle) {
  return destroy(handle);
}

nvjpegStatus_t nvjpegJpegStateCreate(nvjpegHandle_t, nvjpegJpegState_t* state) {
  return create(state);
}
nvjpegStatus_t nvjpegJpegStateDestroy(nvjpegJpegState_t state) {
  return destroy(state);
}

nvjpegStatus_t nvjpegJpegStreamCreate(nvjpegHandle_t, nvjpegJpegStream_t* stream) {
  return create(stream);
}
nvjpegStatus_t nvjpegJpegStreamDestroy(nvjpegJpegStream_t stream) {
  return destroy(stream);
}

nvjpegStatus_t nvjpegJpegStreamParseHeader(nvjpegHandle_t, const unsigned char* data, std::size_t length,
                                           nvjpegJpegStream_t stream) try {
  stream->size = annulus::image_size({data, length});
  return NVJPEG_STATUS_SUCCESS;
} catch (const annulus::Error&) {
  return NVJPEG_STATUS_BAD_JPEG;
}

nvjpegStatus_t nvjpegDecodeParamsCreate(nvjpegHandle_t, nvjpegDecodeParams_t* params) {
  return create(params);
}
nvjpegStatus_t nvjpegDecodeParamsDestroy(nvjpegDecodeParams_t params) {
  return destroy(params);
}

nvjpegStatus_t nvjpegDecodeParamsSetOutputFormat(nvjpegDecodeParams_t params, nvjpegOutputFormat_t format) {
  params->format = format;
  return is_known(format) ? NVJPEG_STATUS_SUCCESS : NVJPEG_STATUS_INVALID_PARAMETER;
}

nvjpegStatus_t nvjpegDecodeBatchedSupportedEx(nvjpegHandle_t, nvjpegJpegStream_t stream, nvjpegDecodeParams_t params,
                                              int* is_supported) {
  const bool supported = std::min(stream->size.height, stream->size.width) >= kLeastSide && is_known(params->format);
  *is_supported = supported ? 0 : 1;
  return NVJPEG_STATUS_SUCCESS;
}

nvjpegStatus_t nvjpegDecodeBatchedInitialize(nvjpegHandle_t, nvjpegJpegState_t state, int batch_size, int,
                                             nvjpegOutputFormat_t format) {
  if (batch_size < 1 || !is_known(format)) return NVJPEG_STATUS_INVALID_PARAMETER;
  *state = {static_cast<std::size_t>(batch_size), format};
  return NVJPEG_STATUS_SUCCESS;
}

// As on some GPUs, it does not wait for earlier work on the stream.
nvjpegStatus_t nvjpegDecodeBatched(nvjpegHandle_t, nvjpegJpegState_t state, const unsigned char* const* data,
                                   const std::size_t* lengths, nvjpegImage_t* destinations, cudaStream_t) try {
  const std::size_t channels = state->format == NVJPEG_OUTPUT_Y ? 1 : 3;
  const std::size_t skipped = emulates("skipping") ? 1 : 0;
  annulus::Image image;
  for (std::size_t i = 0; i + skipped < state->batch; ++i) {
    annulus::decode({data[i], lengths[i]}, channels, image);
    const std::size_t row = image.size.width * channels, pitch = destinations[i].pitch[0];
    unsigned char* const to = destinations[i].channel[0];
    if (pitch < row || !emulated::device_reaches(to, (image.size.height - 1) * pitch + row))
      return NVJPEG_STATUS_INVALID_PARAMETER;
    for (std::size_t y = 0; y < image.size.height; ++y)
      std::memcpy(emulated::accessible(to + y * pitch), image.row(y).data(), row);
  }
  return NVJPEG_STATUS_SUCCESS;
} catch (const annulus::Error&) {
  return NVJPEG_STATUS_BAD_JPEG;
}

namespace annulus::cuda {

const NvJpeg& nvjpeg() {
  if (emulates("missing")) fail("nvJPEG cannot be loaded: there is no emulated one");
  static const NvJpeg library{nvjpegCreateEx,
                              nvjpegDestroy,
                              nvjpegJpegStateCreate,
                              nvjpegJpegStateDestroy,
                              nvjpegJpegStreamCreate,
                              nvjpegJpegStreamDestroy,
                              nvjpegJpegStreamParseHeader,
                              nvjpegDecodeParamsCreate,
                              nvjpegDecodeParamsDestroy,
                              nvjpegDecodeParamsSetOutputFormat,
                              nvjpegDecodeBatchedSupportedEx,
                              nvjpegDecodeBatchedInitialize,
                              nvjpegDecodeBatched};
  return library;
}

}  // namespace annulus::cuda
