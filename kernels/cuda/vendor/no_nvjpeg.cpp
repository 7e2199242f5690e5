// Replaces the decoder if nvJPEG's header is not found.

#include "kernels/base/error.h"
#include "kernels/cuda/vendor/nvjpeg_decoder.h"

namespace annulus::cuda {

std::unique_ptr<JpegDecoder> make_nvjpeg_decoder(int, std::size_t) {
  fail("this program was built without nvJPEG, as its header nvjpeg.h was not found");
}

}  // namespace annulus::cuda
