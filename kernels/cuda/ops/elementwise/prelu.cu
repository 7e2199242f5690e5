#include "kernels/cuda/ops/loops/column_sums.h"
#include "kernels/cuda/ops/loops/input_gradient.h"
#include "kernels/cuda/ops/loops/over_vectors.h"
#include "kernels/cuda/ops/plan/operations.h"

namespace annulus::cuda {
namespace {

// Returns the slopes for a vector's channels.
template <class T>
__device__ Floats<kLanes<T>> slopes_of(const float* slopes, bool per_channel, unsigned vector) {
  if (per_channel) return load_floats<kLanes<T>>(slopes + vector * kLanes<T>);
  Floats<kLanes<T>> all;
  for (float& slope : all.at) slope = *slopes;
  return all;
}

template <class T>
__global__ void prelu(Predecessor previous, const float* slopes, bool per_channel, unsigned in_row, const T* input,
                      T* output, std::size_t vectors) {
  await(previous);
  for (std::size_t i = grid_thread(); i < vectors; i += grid_threads()) {
    const auto slope = slopes_of<T>(slopes, per_channel, static_cast<unsigned>(i % in_row));
    Vector<T> values = load(input, i);
    for (unsigned k = 0; k < kLanes<T>; ++k) values.at[k] *= values.at[k] < 0 ? slope.at[k] : 1;
    store(values, output, i);
  }
}

struct SlopeGradients {
  const float* unscale;
  float* values;

  __device__ void operator()(unsigned channel, const Sums<1>& sum) const { values[channel] = *unscale * sum.of[0]; }
};

// Also adds up the slopes' gradients; a single slope's only for each block and channel.
template <class T>
__global__ void __launch_bounds__(Columns::kThreads, Columns::kBlocksEach)
    prelu_backward(Predecessor previous, Columns columns, const float* slopes, bool per_channel, const T* input,
                   const T* output_gradient, InputGradient<T> to, Sums<1>* partial, unsigned* counters,
                   SlopeGradients to_slopes) {
  await(previous);
  constexpr unsigned kBatch = 2;
  Floats<kLanes<T>> slope{};
  if (own_vector() < columns.vectors) slope = slopes_of<T>(slopes, per_channel, own_vector());
  Sums<1> sums[kLanes<T>]{};
  Packed<T> inputs[kBatch], gradients[kBatch];
  for_each_row<kBatch>(
      columns, false,
      [&](unsigned k, std::size_t index) {
        inputs[k] = fetch(input, index);
        gradients[k] = fetch(output_gradient, index);
      },
      [&](unsigned k, std::size_t index) {
        const Vector<T> x = unpacked<T>(inputs[k]);
        Vector<T> gradient = unpacked<T>(gradients[k]);
        for (unsigned i = 0; i < kLanes<T>; ++i) {
          sums[i].of[0] += x.at[i] < 0 ? gradient.at[i] * x.at[i] : 0;
          gradient.at[i] *= x.at[i] > 0 ? 1 : slope.at[i];
        }
        if (to.wanted()) to.put(gradient, index);
      });
  if (per_channel)
    add_up_columns(columns, sums, partial, counters, to_slopes);
  else
    store_block_sums(columns, sums, partial);
}

// Runs a block with a single column of threads.
__global__ void finish_slope(Predecessor previous, std::size_t count, const Sums<1>* partial, SlopeGradients to) {
  await(previous);
  Sums<1> sum[1]{};
  for (std::size_t i = threadIdx.y; i < count; i += blockDim.y) sum[0] = combined(sum[0], partial[i]);
  add_up_block(sum);
  if (threadIdx.y == 0) to(0, sum[0]);
}

template <class T>
class PReluOp : public Op {
 public:
  PReluOp(const PRelu& operation, const TensorSpec& input, Context& context)
      : context_(context),
        per_channel_(operation.per_channel),
        columns_(channels_last(input).rows(), channels_last(input).channels(), kLanes<T>, context.multiprocessors) {
    info_.output = input;
    info_.inputs = {{.gradient_may_overwrite = true, .adds_to_gradient = true}};
    info_.backward_reads_output = false;
    info_.parameters = {channels_spec(operation.parameters({input.shape})[0].shape, context.type())};
  }

  void bind(const Bindings& bindings) override {
    bindings_ = bindings;
    if (!bindings.output_gradient) return;
    workspace_ = context_.workspace(columns_.partial_sums() * sizeof(Sums<1>));
    counters_ = allocate_device(columns_.counters() * sizeof(unsigned));
  }

  void forward() override {
    over_vectors(prelu<T>, columns_.rows * columns_.vectors, context_, slopes(), per_channel_, columns_.vectors,
                 data<T>(bindings_.inputs[0]), data<T>(bindings_.output));
  }

  void backward(float) override {
    auto* partial = static_cast<Sums<1>*>(workspace_);
    const SlopeGradients to_slopes{context_.unscale, data<float>(bindings_.parameter_gradients[0])};
    launch(prelu_backward<T>, columns_.grid(), columns_.block(), lane(), columns_, slopes(), per_channel_,
           data<T>(bindings_.inputs[0]), data<T>(bindings_.output_gradient), InputGradient<T>(bindings_, 0), partial,
           data<unsigned>(counters_.view()), to_slopes);
    if (!per_channel_)
      launch(finish_slope, 1, dim3(1, Columns::kThreads), lane(), columns_.partial_sums(), partial, to_slopes);
  }

 private:
  cudaStream_t lane() const { return context_.lane.get(); }
  const float* slopes() const { return data<float>(bindings_.parameters[0]); }

  Context& context_;
  bool per_channel_;
  Columns columns_;
  Bindings bindings_;
  Buffer counters_;
  void* workspace_ = nullptr;
};

}  // namespace

std::unique_ptr<Op> plan(const PRelu& operation, const Specs& inputs, Mode, Context& context) {
  return make_for<Op, PReluOp>(context.type(), operation, inputs[0], context);
}

}  // namespace annulus::cuda
