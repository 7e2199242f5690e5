#include "kernels/cuda/ops/pool/max_pool.h"

#include "kernels/cuda/ops/loops/input_gradient.h"
#include "kernels/cuda/ops/loops/limits.h"
#include "kernels/cuda/ops/plan/fusible_norm.h"
#include "kernels/cuda/ops/plan/operations.h"
#include "kernels/neighbour_fusion.h"

namespace annulus::cuda {
namespace {

constexpr unsigned kThreads = 256;

// If `normalized`, the pixels are factor input + offset, unrounded.
template <class T, bool normalized>
__global__ void max_pool(Predecessor previous, Pool pool, const T* input, FusibleNorm::OutputFactors norm, T* output,
                         Numbers<T>* from, float least, unsigned outputs) {
  await(previous);
  constexpr unsigned kBatch = 3;  // in a window row: loads in flight
  for (std::size_t i = grid_thread(); i < outputs; i += grid_threads()) {
    const Place place(static_cast<unsigned>(i), pool.out_height, pool.out_width, pool.vectors);
    Vector<T> factor{}, offset{};
    if constexpr (normalized) {
      factor = load_floats<kLanes<T>>(norm.factor + place.vector * kLanes<T>);
      offset = load_floats<kLanes<T>>(norm.offset + place.vector * kLanes<T>);
    }
    Vector<T> best;
    unsigned numbers[kLanes<T>];
    for (unsigned k = 0; k < kLanes<T>; ++k) {
      best.at[k] = least;
      numbers[k] = kNoPixel;
    }
    // Unsigned positions before the image wrap around, and so are beyond the image's end.
    const unsigned first_column = place.column * pool.columns.stride - pool.columns.padding;
    for (unsigned row = place.row * pool.rows.stride - pool.rows.padding, y = 0; y < pool.rows.kernel; ++y, ++row) {
      if (row >= pool.height) continue;
      for (unsigned x = 0; x < pool.columns.kernel; x += kBatch) {
        Packed<T> pixels[kBatch];
        bool inside[kBatch];
        for (unsigned b = 0; b < kBatch; ++b) {
          const unsigned column = first_column + x + b;
          inside[b] = x + b < pool.columns.kernel && column < pool.width;
          if (inside[b]) pixels[b] = fetch(input, vector_at(place, pool.height, pool.width, pool.vectors, row, column));
        }
        for (unsigned b = 0; b < kBatch; ++b) {
          if (!inside[b]) continue;
          const Vector<T> values = unpacked<T>(pixels[b]);
          for (unsigned k = 0; k < kLanes<T>; ++k) {
            const float value = normalized ? factor.at[k] * values.at[k] + offset.at[k] : values.at[k];
            // NaN is larger than any number, and nothing is larger than NaN: so divergence is not hidden.
            const bool larger = !(value <= best.at[k]) && best.at[k] == best.at[k];
            best.at[k] = larger ? value : best.at[k];
            numbers[k] = larger ? y * pool.columns.kernel + x + b : numbers[k];
          }
        }
      }
    }
    store(best, output, i);
    if (from != nullptr) from[i] = Numbers<T>::of(numbers);
  }
}

template <class T>
__global__ void max_pool_backward(Predecessor previous, Pool pool, const T* output_gradient, const Numbers<T>* from,
                                  InputGradient<T> to, unsigned inputs) {
  await(previous);
  for (std::size_t i = grid_thread(); i < inputs; i += grid_threads())
    to.put(pooled_gradient(pool, output_gradient, from, static_cast<unsigned>(i)), i);
}

template <class T>
class MaxPoolOp : public Op, public NeighbourFusion {
 public:
  MaxPoolOp(const MaxPool& operation, const Specs& inputs, Mode mode, Context& context)
      : operation_(operation), context_(context) {
    const Shape& in = inputs[0].shape;
    const Shape out = output_shape(Operation(operation), {in});
    info_.output = value_spec(out, context.type());
    info_.inputs = {{.backward_reads = false, .adds_to_gradient = true}};
    info_.backward_reads_output = false;
    inputs_ = vectors_of(channels_last(inputs[0]));
    outputs_ = vectors_of(channels_last(info_.output));
    const auto count = [](std::size_t size) { return static_cast<unsigned>(size); };
    const auto& [kernel, stride, padding, relu] = operation;
    pool_ = {.rows = {count(kernel.height), Divisor(count(stride.height)), count(padding.top)},
             .columns = {count(kernel.width), Divisor(count(stride.width)), count(padding.left)},
             .height = Divisor(count(in[2])),
             .width = Divisor(count(in[3])),
             .out_height = Divisor(count(out[2])),
             .out_width = Divisor(count(out[3])),
             .vectors = Divisor(count(channels_last(info_.output).channels()) / kLanes<T>)};
    if (mode == Mode::training) from_ = allocate_device(outputs_ * sizeof(Numbers<T>));
  }

  // If a pixel is in many windows, the batch norm's backward passes would read each of their gradients twice, which
  // takes longer than to read the pixel's own twice.
  void fuse_neighbours(const Neighbours& neighbours) override {
    const auto& [kernel, stride, padding, relu] = operation_;
    auto* norm = dynamic_cast<FusibleNorm*>(neighbours.previous);
    if (norm == nullptr || norm->kind() != FusibleNorm::Kind::plain || neighbours.shares_input) return;
    if (kernel.height > 2 * stride.height || kernel.width > 2 * stride.width) return;
    norm_ = norm->leave_output_to_pool(pool_, from());
    info_.fused.previous = FusedPasses::Previous::output_only;
  }

  void bind_neighbours(const NeighbourBindings& bindings) override {
    if (normalizes()) input_ = data<T>(bindings.previous_inputs[0]);
  }

  void bind(const Bindings& bindings) override {
    if (!normalizes()) input_ = data<T>(bindings.inputs[0]);
    output_values_ = data<T>(bindings.output);
    output_gradient_ = data<T>(bindings.output_gradient);
    gradient_ = {bindings, 0};
  }

  void forward() override {
    launch(normalizes() ? max_pool<T, true> : max_pool<T, false>,
           blocks_for(outputs_, kThreads, context_.multiprocessors), kThreads, context_.lane.get(), pool_, input_,
           norm_, output_values_, from(), operation_.relu ? 0.0f : -INFINITY, outputs_);
  }

  void backward(float) override {
    if (gradient_.wanted() && !normalizes())
      launch(max_pool_backward<T>, blocks_for(inputs_, kThreads, context_.multiprocessors), kThreads,
             context_.lane.get(), pool_, output_gradient_, from(), gradient_, inputs_);
  }

 private:
  bool normalizes() const { return norm_.factor != nullptr; }
  Numbers<T>* from() const { return data<Numbers<T>>(from_.view()); }

  MaxPool operation_;
  Context& context_;
  Pool pool_;
  unsigned inputs_, outputs_;          // in vectors
  Buffer from_;                        // Numbers for each output vector; empty in inference
  FusibleNorm::OutputFactors norm_{};  // if the pool does the passes of the batch norm before it
  const T* input_ = nullptr;
  T* output_values_ = nullptr;
  const T* output_gradient_ = nullptr;
  InputGradient<T> gradient_;
};

}  // namespace

std::unique_ptr<Op> plan(const MaxPool& operation, const Specs& inputs, Mode mode, Context& context) {
  return make_for<Op, MaxPoolOp>(context.type(), operation, inputs, mode, context);
}

}  // namespace annulus::cuda
