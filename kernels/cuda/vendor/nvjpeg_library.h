#pragma once

#include <cuda_runtime.h>
#include <nvjpeg.h>

namespace annulus::cuda {

// Holds the nvJPEG functions that we use. The first use loads the library, because many machines that train do not have
// it: CUDA's toolkit includes nvJPEG, but the packages that PyTorch installs do not.
struct NvJpeg {
  decltype(&nvjpegCreateEx) create;
  decltype(&nvjpegDestroy) destroy;
  decltype(&nvjpegJpegStateCreate) create_state;
  decltype(&nvjpegJpegStateDestroy) destroy_state;
  decltype(&nvjpegJpegStreamCreate) create_stream;
  decltype(&nvjpegJpegStreamDestroy) destroy_stream;
  decltype(&nvjpegJpegStreamParseHeader) parse_header;
  decltype(&nvjpegDecodeParamsCreate) create_params;
  decltype(&nvjpegDecodeParamsDestroy) destroy_params;
  decltype(&nvjpegDecodeParamsSetOutputFormat) set_output_format;
  decltype(&nvjpegDecodeBatchedSupportedEx) supported;
  decltype(&nvjpegDecodeBatchedInitialize) initialize_batch;
  decltype(&nvjpegDecodeBatched) decode_batch;
};

// Thread-safe. Throws Error if the library is missing.
const NvJpeg& nvjpeg();

}  // namespace annulus::cuda
