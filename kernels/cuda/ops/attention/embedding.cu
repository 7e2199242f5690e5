#include "kernels/cuda/ops/loops/elementwise.h"
#include "kernels/cuda/ops/loops/input_gradient.h"
#include "kernels/cuda/ops/loops/over_vectors.h"
#include "kernels/cuda/ops/plan/operations.h"

namespace annulus::cuda {
namespace {

// Writes the rows for each window's first tokens, and the tokens themselves. `window`: tokens in a window; `row`:
// vectors in a row.
template <class T>
__global__ void embed(Predecessor previous, const std::int32_t* windows, unsigned length, unsigned window,
                      std::int32_t vocabulary, const float* table, unsigned row, std::int32_t* embedded, T* output,
                      std::size_t vectors) {
  await(previous);
  for (std::size_t i = grid_thread(); i < vectors; i += grid_threads()) {
    const std::size_t token = i / row, vector = i % row;
    const std::int32_t id = windows[token / length * window + token % length];
    const bool known = id >= 0 && id < vocabulary;
    Vector<T> values{};
    if (known) values = load_floats<kLanes<T>>(table + (static_cast<std::size_t>(id) * row + vector) * kLanes<T>);
    store(values, output, i);
    if (vector == 0) embedded[token] = known ? id : -1;
  }
}

template <class T>
class TokenEmbeddingOp : public Op {
 public:
  TokenEmbeddingOp(const TokenEmbedding& operation, const TensorSpec& window, Context& context)
      : context_(context), vocabulary_(static_cast<std::int32_t>(operation.vocabulary)) {
    const Shape output = operation.output_shape({window.shape});
    info_.output = last_spec(output, context.type());
    info_.parameters = {weights_spec({operation.vocabulary, operation.width}, context.type())};
    info_.inputs = {{.backward_reads = false}};
    info_.backward_reads_output = false;
    info_.skips_parameter_gradients = true;
    length_ = static_cast<unsigned>(output[1]);
    window_ = static_cast<unsigned>(window_form(window.shape).size());
    row_ = static_cast<unsigned>(channels_last(info_.output).channels() / kLanes<T>);
    embedded_ = allocate_device(output[0] * output[1] * sizeof(std::int32_t));
  }

  void bind(const Bindings& bindings) override { bindings_ = bindings; }

  void forward() override {
    over_vectors(embed<T>, vectors_of(channels_last(info_.output)), context_, data<std::int32_t>(bindings_.inputs[0]),
                 length_, window_, vocabulary_, data<float>(bindings_.parameters[0]), row_,
                 data<std::int32_t>(embedded_.view()), data<T>(bindings_.output));
  }

  void backward(float) override {
    const DeviceView to = bindings_.parameter_gradients[0];
    if (!to) return;
    check(cudaMemsetAsync(to.address, 0, to.bytes, context_.lane.get()));
    add_rows(bindings_.output_gradient, context_.type(), embedded_.view(), std::size_t{row_} * kLanes<T>, to, context_);
  }

 private:
  Context& context_;
  std::int32_t vocabulary_;
  unsigned length_ = 0, window_ = 0, row_ = 0;  // row_: vectors in a row
  Buffer embedded_;                             // tokens
  Bindings bindings_;
};

// Adds the table's first rows to each sample, or if `positions` is not null the row that it names. `sample`: vectors in
// a sample.
template <class T>
__global__ void add_positions(Predecessor previous, const T* input, const float* table, const std::int32_t* positions,
                              std::size_t sample, T* output, std::size_t vectors) {
  await(previous);
  for (std::size_t i = grid_thread(); i < vectors; i += grid_threads()) {
    const std::size_t first = positions == nullptr ? 0 : static_cast<std::size_t>(positions[i / sample]) * sample;
    const Vector<T> more = load_floats<kLanes<T>>(table + (first + i % sample) * kLanes<T>);
    Vector<T> values = load(input, i);
    for (unsigned k = 0; k < kLanes<T>; ++k) values.at[k] += more.at[k];
    store(values, output, i);
  }
}

// Sums over the samples; each has `sample` vectors.
template <class T>
__global__ void add_up_samples(Predecessor previous, const T* output_gradient, std::size_t batch, const float* unscale,
                               float* to, std::size_t sample) {
  await(previous);
  for (std::size_t i = grid_thread(); i < sample; i += grid_threads()) {
    Vector<T> sum{};
    for (std::size_t n = 0; n < batch; ++n) {
      const Vector<T> more = load(output_gradient, n * sample + i);
      for (unsigned k = 0; k < kLanes<T>; ++k) sum.at[k] += more.at[k];
    }
    for (float& value : sum.at) value *= *unscale;
    store_floats(sum, to + i * kLanes<T>);
  }
}

template <class T>
__global__ void put_vectors(Predecessor previous, const T* from, InputGradient<T> to, std::size_t vectors) {
  await(previous);
  for (std::size_t i = grid_thread(); i < vectors; i += grid_threads()) to.put(load(from, i), i);
}

template <class T>
class PositionEmbeddingOp : public Op {
 public:
  PositionEmbeddingOp(const PositionEmbedding& operation, const TensorSpec& input, Context& context)
      : context_(context), batch_(input.shape[0]) {
    info_.output = input;
    info_.parameters = {weights_spec(operation.parameters({input.shape})[0].shape, context.type())};
    info_.inputs = {{.backward_reads = false,
                     .output_may_overwrite = true,
                     .gradient_may_overwrite = true,
                     .adds_to_gradient = true}};
    info_.backward_reads_output = false;
    info_.skips_parameter_gradients = true;
    vectors_ = vectors_of(channels_last(input));
  }

  void bind(const Bindings& bindings) override { bindings_ = bindings; }

  void forward() override {
    over_vectors(add_positions<T>, vectors_, context_, data<T>(bindings_.inputs[0]),
                 data<float>(bindings_.parameters[0]),
                 bindings_.inputs.size() > 1 ? data<std::int32_t>(bindings_.inputs[1]) : nullptr, vectors_ / batch_,
                 data<T>(bindings_.output));
  }

  void backward(float) override {
    const T* gradient = data<T>(bindings_.output_gradient);
    if (const DeviceView table = bindings_.parameter_gradients[0]) {
      check(cudaMemsetAsync(table.address, 0, table.bytes, context_.lane.get()));
      over_vectors(add_up_samples<T>, vectors_ / batch_, context_, gradient, batch_, context_.unscale,
                   data<float>(table));
    }
    const InputGradient<T> to(bindings_, 0);
    if (to.wanted() && !to.is(bindings_.output_gradient))
      over_vectors(put_vectors<T>, vectors_, context_, gradient, to);
  }

 private:
  Context& context_;
  std::size_t batch_, vectors_ = 0;
  Bindings bindings_;
};

}  // namespace

std::unique_ptr<Op> plan(const TokenEmbedding& operation, const Specs& inputs, Mode, Context& context) {
  return make_for<Op, TokenEmbeddingOp>(context.type(), operation, inputs[0], context);
}

std::unique_ptr<Op> plan(const PositionEmbedding& operation, const Specs& inputs, Mode, Context& context) {
  return make_for<Op, PositionEmbeddingOp>(context.type(), operation, inputs[0], context);
}

}  // namespace annulus::cuda
