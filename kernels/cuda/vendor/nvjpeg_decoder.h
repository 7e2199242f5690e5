#pragma once

#include <cstddef>
#include <memory>

#include "kernels/base/jpeg_decoder.h"

namespace annulus::cuda {

// Makes a decoder that uses the GPU's hardware decoder, while the multiprocessors train: for baseline images with a
// supported width and height. `channels`: 3 for RGB, 1 for gray. To be called by the thread that decodes. Throws Error
// if the GPU has no hardware decoder or nvJPEG is missing.
std::unique_ptr<JpegDecoder> make_nvjpeg_decoder(int gpu, std::size_t channels);

}  // namespace annulus::cuda
