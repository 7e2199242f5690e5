#pragma once

// The part of nvJPEG that this program uses: the hardware decoder, with batches of baseline images.

#include <cstddef>

#include "tests/gpu/emulator/cuda_runtime.h"

enum nvjpegStatus_t {
  NVJPEG_STATUS_SUCCESS = 0,
  NVJPEG_STATUS_INVALID_PARAMETER = 2,
  NVJPEG_STATUS_BAD_JPEG = 3,
  NVJPEG_STATUS_JPEG_NOT_SUPPORTED = 4,
  NVJPEG_STATUS_EXECUTION_FAILED = 6,
  NVJPEG_STATUS_ARCH_MISMATCH = 7,
  NVJPEG_STATUS_INCOMPLETE_BITSTREAM = 10
};
enum nvjpegBackend_t { NVJPEG_BACKEND_HARDWARE = 3 };
enum nvjpegOutputFormat_t { NVJPEG_OUTPUT_Y = 2, NVJPEG_OUTPUT_RGBI = 5 };
constexpr unsigned NVJPEG_FLAGS_DEFAULT = 0;

struct nvjpegImage_t {
  unsigned char* channel[4];
  std::size_t pitch[4];
};
struct nvjpegDevAllocator_t;
struct nvjpegPinnedAllocator_t;
typedef struct nvjpegHandle* nvjpegHandle_t;
typedef struct nvjpegJpegState* nvjpegJpegState_t;
typedef struct nvjpegJpegStream* nvjpegJpegStream_t;
typedef struct nvjpegDecodeParams* nvjpegDecodeParams_t;

nvjpegStatus_t nvjpegCreateEx(nvjpegBackend_t backend, nvjpegDevAllocator_t* device_allocator,
                              nvjpegPinnedAllocator_t* pinned_allocator, unsigned flags, nvjpegHandle_t* handle);
nvjpegStatus_t nvjpegDestroy(nvjpegHandle_t handle);
nvjpegStatus_t nvjpegJpegStateCreate(nvjpegHandle_t handle, nvjpegJpegState_t* state);
nvjpegStatus_t nvjpegJpegStateDestroy(nvjpegJpegState_t state);
nvjpegStatus_t nvjpegJpegStreamCreate(nvjpegHandle_t handle, nvjpegJpegStream_t* stream);
nvjpegStatus_t nvjpegJpegStreamDestroy(nvjpegJpegStream_t stream);
nvjpegStatus_t nvjpegJpegStreamParseHeader(nvjpegHandle_t handle, const unsigned char* data, std::size_t length,
                                           nvjpegJpegStream_t stream);
nvjpegStatus_t nvjpegDecodeParamsCreate(nvjpegHandle_t handle, nvjpegDecodeParams_t* params);
nvjpegStatus_t nvjpegDecodeParamsDestroy(nvjpegDecodeParams_t params);
nvjpegStatus_t nvjpegDecodeParamsSetOutputFormat(nvjpegDecodeParams_t params, nvjpegOutputFormat_t format);
nvjpegStatus_t nvjpegDecodeBatchedSupportedEx(nvjpegHandle_t handle, nvjpegJpegStream_t stream,
                                              nvjpegDecodeParams_t params, int* is_supported);  // 0: it is
nvjpegStatus_t nvjpegDecodeBatchedInitialize(nvjpegHandle_t handle, nvjpegJpegState_t state, int batch_size,
                                             int max_cpu_threads, nvjpegOutputFormat_t format);
nvjpegStatus_t nvjpegDecodeBatched(nvjpegHandle_t handle, nvjpegJpegState_t state, const unsigned char* const* data,
                                   const std::size_t* lengths, nvjpegImage_t* destinations, cudaStream_t stream);
