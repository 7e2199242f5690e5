#include "kernels/cuda/ops/convolution/image_blocks.h"

#include <utility>

#include "kernels/cuda/ops/loops/vectors.h"
#include "kernels/cuda/ops/plan/image_reader.h"
#include "kernels/cuda/ops/plan/operations.h"
#include "kernels/operations/over_blocks.h"

namespace annulus::cuda {
namespace {

constexpr unsigned kThreads = 256;

// Weights {filters', rows, columns, stored channels}, the last channels padding, and where each is in the weights over
// blocks {filters', block rows, block columns, a block's stored channels}.
struct WeightPlaces {
  unsigned count, rows, columns, channels, stored_channels;
  unsigned block_height, block_width, skipped_rows, skipped_columns;
  unsigned rows_of_blocks, columns_of_blocks, block_channels;

  __device__ bool is_padding(unsigned i) const { return i % stored_channels >= channels; }

  __device__ unsigned operator()(unsigned i) const {
    const unsigned pixel = i / stored_channels, line = pixel / columns;
    const unsigned row = line % rows + skipped_rows, column = pixel % columns + skipped_columns;
    const unsigned block =
        (line / rows * rows_of_blocks + row / block_height) * columns_of_blocks + column / block_width;
    const unsigned within = row % block_height * block_width + column % block_width;
    return block * block_channels + within * channels + i % stored_channels;
  }
};

template <class T>
__global__ void spread_weights(Predecessor previous, WeightPlaces places, const T* weights, T* over_blocks) {
  await(previous);
  for (std::size_t i = grid_thread(); i < places.count; i += grid_threads())
    if (const auto k = static_cast<unsigned>(i); !places.is_padding(k)) over_blocks[places(k)] = weights[k];
}

__global__ void collect_gradient(Predecessor previous, WeightPlaces places, const float* over_blocks, float* gradient) {
  await(previous);
  for (std::size_t i = grid_thread(); i < places.count; i += grid_threads()) {
    const auto k = static_cast<unsigned>(i);
    gradient[k] = places.is_padding(k) ? 0 : over_blocks[places(k)];
  }
}

WeightPlaces places_of(const Convolution& layer, const Convolution& over_blocks, const ChannelsLast& weights,
                       const ChannelsLast& blocks) {
  const Extent& block = layer.stride;
  const auto number = [](std::size_t value) { return static_cast<unsigned>(value); };
  return {.count = number(weights.count()),
          .rows = number(layer.kernel.height),
          .columns = number(layer.kernel.width),
          .channels = number(weights.shape()[1]),
          .stored_channels = number(weights.channels()),
          .block_height = number(block.height),
          .block_width = number(block.width),
          .skipped_rows = number(block.height * over_blocks.padding.top - layer.padding.top),
          .skipped_columns = number(block.width * over_blocks.padding.left - layer.padding.left),
          .rows_of_blocks = number(over_blocks.kernel.height),
          .columns_of_blocks = number(over_blocks.kernel.width),
          .block_channels = number(blocks.channels())};
}

// Runs a convolution over pixel blocks with weights over pixels.
class BlocksOp : public Op {
 public:
  BlocksOp(const Convolution& layer, const Convolution& over_blocks, const TensorSpec& images, const TensorSpec& pixels,
           Mode mode, Context& context)
      : context_(context), op_(plan_over_pixels(over_blocks, pixels, mode, context)) {
    info_ = op_->info();
    const TensorSpec blocks = info_.parameters[0];
    info_.parameters[0] = weights_spec(layer.parameters({images.shape})[0].shape, context.type());
    places_ = places_of(layer, over_blocks, channels_last(info_.parameters[0]), channels_last(blocks));
    weights_ = allocate_device(channels_last(blocks).count() * size_of(context.type()));
    if (mode == Mode::training) gradient_ = allocate_device(blocks.layout->bytes());
  }

  void bind(const Bindings& bindings) override {
    Bindings inner = bindings;
    DeviceView& weights = context_.type() == DataType::f32 ? inner.parameters[0] : inner.copies[0];
    from_ = std::exchange(weights, weights_.view());
    if (gradient_.view() && bindings.parameter_gradients[0])
      to_ = std::exchange(inner.parameter_gradients[0], gradient_.view());
    op_->bind(inner);
  }

  void forward() override {
    for_type(context_.type(), [&](auto zero) {
      using T = decltype(zero);
      launch(spread_weights<T>, blocks(), kThreads, context_.lane.get(), places_, data<T>(from_),
             data<T>(weights_.view()));
    });
    op_->forward();
  }

  void backward(float sample_weight) override {
    op_->backward(sample_weight);
    if (to_)
      launch(collect_gradient, blocks(), kThreads, context_.lane.get(), places_, data<float>(gradient_.view()),
             data<float>(to_));
  }

 private:
  unsigned blocks() const { return blocks_for(places_.count, kThreads, context_.multiprocessors); }

  Context& context_;
  std::unique_ptr<Op> op_;
  WeightPlaces places_{};
  Buffer weights_;        // over blocks, in the value type; zero if a block has no such weight
  Buffer gradient_;       // over blocks, float32
  DeviceView from_, to_;  // the layer's weights, and their gradient if it is wanted
};

// Reads pixels until it is asked for blocks.
class ImageReaderOp : public Op, public ImageReader {
 public:
  ImageReaderOp(const Convolution& layer, const Convolution& over_blocks, const TensorSpec& images, Mode mode,
                Context& context)
      : layer_(layer),
        over_blocks_(over_blocks),
        images_(images),
        mode_(mode),
        context_(context),
        op_(plan_over_pixels(layer, images, mode, context)) {
    info_ = op_->info();
  }

  std::shared_ptr<const ImageBlocks> take_blocks() override {
    auto blocks = std::make_shared<const ImageBlocks>(images_.shape, layer_.stride, images_.type);
    op_ = std::make_unique<BlocksOp>(layer_, over_blocks_, images_, blocks->pixels(), mode_, context_);
    return blocks;
  }

  void bind(const Bindings& bindings) override { op_->bind(bindings); }
  void forward() override { op_->forward(); }
  void backward(float sample_weight) override { op_->backward(sample_weight); }

 private:
  const Convolution layer_, over_blocks_;
  const TensorSpec images_;
  const Mode mode_;
  Context& context_;
  std::unique_ptr<Op> op_;
};

// How many values a filter over stored images has.
std::size_t filter_size(const TensorSpec& pixels, const Convolution& layer) {
  return channels_last(pixels).channels() * layer.kernel.area();
}

}  // namespace

std::unique_ptr<Op> plan_image_reader(const Convolution& operation, const TensorSpec& images, Mode mode,
                                      Context& context) {
  const auto same = over_blocks(operation, images.shape);
  if (!same) return nullptr;
  const ImageBlocks blocks(images.shape, operation.stride, images.type);
  if (filter_size(blocks.pixels(), *same) > filter_size(images, operation)) return nullptr;
  return std::make_unique<ImageReaderOp>(operation, *same, images, mode, context);
}

}  // namespace annulus::cuda
