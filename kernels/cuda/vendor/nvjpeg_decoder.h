#pragma once

#include <cstddef>
#include <memory>

#include "kernels/base/jpeg_decoder.h"

namespace annulus::cuda {

// Decodes with the GPU's hardware decoder, beside its multiprocessors, which train meanwhile: baseline images whose
// width and height it supports. `channels`: 3 for RGB, 1 for gray. To be called by the thread that decodes. Throws
// Error if the GPU has no such decoder or nvJPEG is missing.
std::unique_ptr<JpegDecoder> make_nvjpeg_decoder(int gpu, std::size_t channels);

}  // namespace annulus::cuda
