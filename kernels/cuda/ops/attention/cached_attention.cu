#include "kernels/cuda/ops/loops/column_sums.h"
#include "kernels/cuda/ops/plan/operations.h"

namespace annulus::cuda {
namespace {

constexpr unsigned kThreads = 128;

struct Heads {
  unsigned count, width, positions;   // width: each head's
  std::size_t input_row, output_row;  // distance between tokens in memory, in values
};

// Runs a block, a single column of threads, for each head and sample. `weights`: {batch, heads, positions}.
template <class T>
__global__ void attend(Predecessor previous, const T* input, const std::int32_t* positions, Heads heads, float scale,
                       float* keys, float* values, float* weights, T* output) {
  await(previous);
  const unsigned sample = blockIdx.x / heads.count, head = blockIdx.x % heads.count;
  const auto position = static_cast<unsigned>(positions[sample]);
  const unsigned whole = heads.count * heads.width;
  const T* query = input + sample * heads.input_row + head * heads.width;
  const std::size_t cache = std::size_t{sample} * heads.positions * whole + head * heads.width;
  keys += cache;
  values += cache;
  weights += std::size_t{blockIdx.x} * heads.positions;
  for (unsigned i = threadIdx.y; i < heads.width; i += kThreads) {
    keys[std::size_t{position} * whole + i] = static_cast<float>(query[whole + i]);
    values[std::size_t{position} * whole + i] = static_cast<float>(query[2 * whole + i]);
  }
  __syncthreads();
  Maximum largest[1]{{-INFINITY}};
  for (unsigned at = threadIdx.y; at <= position; at += kThreads) {
    float sum = 0;
    for (unsigned i = 0; i < heads.width; ++i) sum += static_cast<float>(query[i]) * keys[std::size_t{at} * whole + i];
    weights[at] = scale * sum;
    largest[0] = combined(largest[0], {weights[at]});
  }
  add_up_block(largest);
  Sums<1> total[1]{};
  for (unsigned at = threadIdx.y; at <= position; at += kThreads)
    total[0].of[0] += weights[at] = expf(weights[at] - largest[0].value);
  add_up_block(total);
  for (unsigned i = threadIdx.y; i < heads.width; i += kThreads) {
    float sum = 0;
    for (unsigned at = 0; at <= position; ++at) sum += weights[at] * values[std::size_t{at} * whole + i];
    output[sample * heads.output_row + head * heads.width + i] = T(sum / total[0].of[0]);
  }
}

template <class T>
class CachedAttentionOp : public Op {
 public:
  CachedAttentionOp(const CachedAttention& operation, const Specs& inputs, Context& context) : context_(context) {
    const Shape shape = operation.output_shape({inputs[0].shape, inputs[1].shape});
    info_.output = last_spec(shape, context.type());
    batch_ = shape[0];
    heads_.count = static_cast<unsigned>(operation.heads);
    heads_.width = static_cast<unsigned>(shape[2] / operation.heads);
    heads_.positions = static_cast<unsigned>(operation.positions);
    heads_.input_row = channels_last(inputs[0]).channels();
    heads_.output_row = channels_last(info_.output).channels();
    for (Buffer* cache : {&keys_, &values_})
      *cache = allocate_device(batch_ * operation.positions * shape[2] * sizeof(float));
    weights_ = allocate_device(batch_ * operation.heads * operation.positions * sizeof(float));
  }

  void bind(const Bindings& bindings) override { bindings_ = bindings; }

  void forward() override {
    check(cudaMemsetAsync(bindings_.output.address, 0, info_.output.layout->bytes(), context_.lane.get()));  // padding
    launch(attend<T>, static_cast<unsigned>(batch_) * heads_.count, dim3(1, kThreads), context_.lane.get(),
           data<T>(bindings_.inputs[0]), data<std::int32_t>(bindings_.inputs[1]), heads_,
           1 / std::sqrt(static_cast<float>(heads_.width)), data<float>(keys_.view()), data<float>(values_.view()),
           data<float>(weights_.view()), data<T>(bindings_.output));
  }

  void backward(float) override {}  // it is only planned for inference

 private:
  Context& context_;
  std::size_t batch_ = 0;
  Heads heads_{};
  Buffer keys_, values_, weights_;  // {batch, positions, width}, and {batch, heads, positions} for the last token
  Bindings bindings_;
};

}  // namespace

std::unique_ptr<Op> plan(const CachedAttention& operation, const Specs& inputs, Mode, Context& context) {
  return make_for<Op, CachedAttentionOp>(context.type(), operation, inputs, context);
}

}  // namespace annulus::cuda
