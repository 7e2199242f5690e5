#include "kernels/cuda/ops/shaping/image_input.h"

#include <span>
#include <vector>

#include "kernels/cuda/ops/loops/limits.h"
#include "kernels/cuda/ops/loops/vectors.h"
#include "kernels/cuda/ops/plan/operations.h"

namespace annulus::cuda {
namespace {

constexpr unsigned kThreads = 256;

// Returns the address of an output pixel's first channel in the images, or null if it is outside.
__device__ const std::uint8_t* pixel_of(const Images& images, const Augmentation& augmentation, std::size_t image,
                                        std::int64_t row, std::int64_t column) {
  const auto height = static_cast<std::int64_t>(images.height), width = static_cast<std::int64_t>(images.width);
  if (augmentation.rows != nullptr) row += augmentation.rows[image];
  if (augmentation.columns != nullptr) column += augmentation.columns[image];
  if (augmentation.mirrored != nullptr && augmentation.mirrored[image] != 0) column = width - 1 - column;
  if (row < 0 || row >= height || column < 0 || column >= width) return nullptr;
  const std::size_t pixel = (image * images.height + static_cast<std::size_t>(row)) * images.width;
  return images.pixels + (pixel + static_cast<std::size_t>(column)) * images.channels;
}

// Writes whole vectors, also of three channels in 16 bits: if they were padded to four, the plans that cuDNN prefers
// for the first convolution, backward and in bf16 forward as well, would copy the images to eight.
template <class T>
__global__ void load_pixels(Predecessor previous, Images images, Augmentation augmentation, const float* factor,
                            const float* offset, unsigned height, unsigned width, unsigned vectors, T* values) {
  await(previous);
  const std::size_t pixels = images.batch * height * width;
  for (std::size_t i = grid_thread(); i < pixels; i += grid_threads()) {
    const unsigned pixel = static_cast<unsigned>(i), line = pixel / width;
    const std::uint8_t* from = pixel_of(images, augmentation, line / height, line % height, pixel % width);
    for (unsigned vector = 0; vector < vectors; ++vector) {
      Vector<T> result;
      for (unsigned k = 0; k < kLanes<T>; ++k) {
        const unsigned channel = vector * kLanes<T> + k;
        const bool there = from != nullptr && channel < images.channels;
        result.at[k] = (there ? static_cast<float>(from[channel]) : 0.0f) * factor[channel] + offset[channel];
      }
      store(result, values, i * vectors + vector);
    }
  }
}

class ImageInputOp : public Op {
 public:
  ImageInputOp(const ImageInput& operation, const Specs& inputs, Context& context)
      : context_(context), shape_(inputs[0].shape) {
    const Shape shape = output_shape(Operation(operation), {shape_});
    info_.output = value_spec(shape, context.type());
    info_.inputs = {{.backward_reads = false}};
    info_.backward_reads_output = false;
    channels_ = channels_last(info_.output).channels();
    vectors_of(channels_last(info_.output));  // so that 32 bits count the pixels
    std::vector<float> factors_and_offsets(2 * channels_);
    for (std::size_t c = 0; c < shape[1]; ++c) {
      factors_and_offsets[c] = 1.0f / (255.0f * operation.stddev[c]);
      factors_and_offsets[channels_ + c] = -operation.mean[c] / operation.stddev[c];
    }
    constants_ = to_device(std::as_bytes(std::span(factors_and_offsets)));
  }

  void bind(const Bindings& bindings) override {
    pixels_ = data<std::uint8_t>(bindings.inputs[0]);
    values_ = bindings.output.address;
  }

  void forward() override {
    const auto* factor = data<float>(constants_.view());
    load_images({pixels_, shape_[0], shape_[1], shape_[2], shape_[3]}, {}, factor, factor + channels_, shape_[1],
                shape_[2], values_, context_);
  }

  void backward(float) override {}  // nothing below needs a gradient

 private:
  Context& context_;
  Shape shape_;
  std::size_t channels_;
  Buffer constants_;  // all channels' factors, then their offsets
  const std::uint8_t* pixels_ = nullptr;
  void* values_ = nullptr;
};

}  // namespace

void load_images(const Images& images, const Augmentation& augmentation, const float* factor, const float* offset,
                 std::size_t height, std::size_t width, void* values, const Context& context) {
  for_type(context.type(), [&](auto zero) {
    using T = decltype(zero);
    const std::size_t vectors = (images.channels + kLanes<T> - 1) / kLanes<T>;
    launch(load_pixels<T>, blocks_for(images.batch * height * width, kThreads, context.multiprocessors), kThreads,
           context.lane.get(), images, augmentation, factor, offset, height, width, vectors, static_cast<T*>(values));
  });
}

std::unique_ptr<Op> plan(const ImageInput& operation, const Specs& inputs, Mode, Context& context) {
  return std::make_unique<ImageInputOp>(operation, inputs, context);
}

}  // namespace annulus::cuda
