#pragma once

#include <memory>

#include "kernels/cuda/ops/loops/context.h"
#include "kernels/device.h"

// Convolutions with a stride over images with few channels. cuDNN pads the channels to whole vectors, and has no plan
// for Hopper with a stride over so few. Over pixel blocks (over_blocks()) there is no stride, and less padding.
namespace annulus::cuda {

// Plans a convolution that may read images in blocks; null if pixels are as good. `images`: in ChannelsLast layout.
// Weights and their gradient keep their layout.
std::unique_ptr<Op> plan_image_reader(const Convolution& operation, const TensorSpec& images, Mode mode,
                                      Context& context);

// Plans any convolution, over inputs in ChannelsLast layout.
std::unique_ptr<Op> plan_over_pixels(const Convolution& operation, const TensorSpec& images, Mode mode,
                                     Context& context);

}  // namespace annulus::cuda
