#include "kernels/cuda/ops/shaping/image_input.h"

#include <span>
#include <vector>

#include "kernels/cuda/ops/loops/divisor.h"
#include "kernels/cuda/ops/loops/limits.h"
#include "kernels/cuda/ops/loops/vectors.h"
#include "kernels/cuda/ops/plan/image_reader.h"
#include "kernels/cuda/ops/plan/operations.h"
#include "kernels/neighbour_fusion.h"

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

// How values are stored: in pixel blocks, whose channels are in vectors.
struct StoredBlocks {
  unsigned height, width;  // in pixels
  unsigned block_height;
  Divisor block_width, channels;
  Divisor rows, columns;  // in blocks
  Divisor vectors;        // in a block
};

// Writes whole vectors, also of three channels in 16 bits: if they were padded to four, the plans that cuDNN prefers
// for the first convolution, backward and in bf16 forward as well, would copy the images to eight.
template <class T>
__global__ void load_pixels(Predecessor previous, Images images, Augmentation augmentation, const float* factor,
                            const float* offset, StoredBlocks stored, T* values) {
  await(previous);
  const std::size_t vectors = images.batch * stored.rows * stored.columns * stored.vectors;
  for (std::size_t i = grid_thread(); i < vectors; i += grid_threads()) {
    const unsigned block = static_cast<unsigned>(i) / stored.vectors, line = block / stored.columns;
    const unsigned image = line / stored.rows, first = static_cast<unsigned>(i) % stored.vectors * kLanes<T>;
    const unsigned top = line % stored.rows * stored.block_height, left = block % stored.columns * stored.block_width;
    Vector<T> result;
    for (unsigned k = 0; k < kLanes<T>; ++k) {
      const unsigned channel = first + k, pixel = channel / stored.channels, below = pixel / stored.block_width;
      const unsigned row = top + below, column = left + pixel % stored.block_width;
      const bool there = below < stored.block_height && row < stored.height && column < stored.width;
      const std::uint8_t* from = there ? pixel_of(images, augmentation, image, row, column) : nullptr;
      const float value = from != nullptr ? static_cast<float>(from[channel % stored.channels]) : 0.0f;
      result.at[k] = there ? value * factor[channel] + offset[channel] : 0;
    }
    store(result, values, i);
  }
}

const ImageBlocks* blocks_of(const TensorSpec& values) {
  return dynamic_cast<const ImageBlocks*>(values.layout.get());
}

// Returns the spec that stores values in either layout as pixels.
TensorSpec stored_pixels(const TensorSpec& values) {
  const ImageBlocks* blocks = blocks_of(values);
  return blocks == nullptr ? values : blocks->pixels();
}

StoredBlocks stored_blocks(const TensorSpec& values, unsigned lanes) {
  const ImageBlocks* blocks = blocks_of(values);
  const Extent block = blocks == nullptr ? 1 : blocks->block();
  const TensorSpec pixels = stored_pixels(values);
  const auto number = [](std::size_t value) { return static_cast<unsigned>(value); };
  return {.height = number(values.shape[2]),
          .width = number(values.shape[3]),
          .block_height = number(block.height),
          .block_width = Divisor(number(block.width)),
          .channels = Divisor(number(values.shape[1])),
          .rows = Divisor(number(pixels.shape[2])),
          .columns = Divisor(number(pixels.shape[3])),
          .vectors = Divisor(number(channels_last(pixels).channels()) / lanes)};
}

class ImageInputOp : public Op, public NeighbourFusion {
 public:
  ImageInputOp(const ImageInput& operation, const Specs& inputs, Context& context)
      : operation_(operation), context_(context), shape_(inputs[0].shape) {
    info_.output = value_spec(output_shape(Operation(operation), {shape_}), context.type());
    info_.inputs = {{.backward_reads = false}};
    info_.backward_reads_output = false;
    vectors_of(channels_last(info_.output));  // so that 32 bits count the pixels
  }

  void fuse_neighbours(const Neighbours& neighbours) override {
    auto* const reader = dynamic_cast<ImageReader*>(neighbours.next);
    if (reader != nullptr) info_.output.layout = reader->take_blocks();
  }
  void bind_neighbours(const NeighbourBindings&) override {}

  void bind(const Bindings& bindings) override {
    const TensorSpec pixels = stored_pixels(info_.output);
    const std::size_t channels = operation_.mean.size();
    channels_ = channels_last(pixels).channels();
    std::vector<float> factors_and_offsets(2 * channels_);
    for (std::size_t i = 0; i < pixels.shape[1]; ++i) {
      factors_and_offsets[i] = 1.0f / (255.0f * operation_.stddev[i % channels]);
      factors_and_offsets[channels_ + i] = -operation_.mean[i % channels] / operation_.stddev[i % channels];
    }
    constants_ = to_device(std::as_bytes(std::span(factors_and_offsets)));
    pixels_ = data<std::uint8_t>(bindings.inputs[0]);
    values_ = bindings.output.address;
  }

  void forward() override {
    const auto* factor = data<float>(constants_.view());
    load_images({pixels_, shape_[0], shape_[1], shape_[2], shape_[3]}, {}, factor, factor + channels_, info_.output,
                values_, context_);
  }

  void backward(float) override {}  // nothing below needs a gradient

 private:
  const ImageInput operation_;
  Context& context_;
  const Shape shape_;
  std::size_t channels_ = 0;  // a pixel's or a block's, as stored
  Buffer constants_;          // all channels' factors, then their offsets
  const std::uint8_t* pixels_ = nullptr;
  void* values_ = nullptr;
};

}  // namespace

void load_images(const Images& images, const Augmentation& augmentation, const float* factor, const float* offset,
                 const TensorSpec& values, void* to, const Context& context) {
  for_type(context.type(), [&](auto zero) {
    using T = decltype(zero);
    const StoredBlocks stored = stored_blocks(values, kLanes<T>);
    const std::size_t vectors = vectors_of(channels_last(stored_pixels(values)));  // so that 32 bits count them
    launch(load_pixels<T>, blocks_for(vectors, kThreads, context.multiprocessors), kThreads, context.lane.get(), images,
           augmentation, factor, offset, stored, static_cast<T*>(to));
  });
}

std::unique_ptr<Op> plan(const ImageInput& operation, const Specs& inputs, Mode, Context& context) {
  return std::make_unique<ImageInputOp>(operation, inputs, context);
}

}  // namespace annulus::cuda
