#include <algorithm>
#include <cmath>

#include "kernels/cuda/ops/loops/input_gradient.h"
#include "kernels/cuda/ops/loops/row_warps.h"
#include "kernels/cuda/ops/plan/operations.h"
#include "kernels/dropout_mask.h"

// Dao, "FlashAttention-2", ICLR 2024: a thread block has a tile of queries, or in backward a tile of keys, and visits
// all tiles of keys (in backward: of queries), so that no matrix of attention weights is in memory. Sums are float32.
//
// A pass runs cuDNN's plan instead, if cuDNN has any (in 16 bits only), except with dropout, where the masks are ours.
// cuDNN and these kernels store logarithms of sums in the same form, so either can compute the backward pass after the
// other's forward.
namespace annulus::cuda {
namespace {

constexpr unsigned kTile = 32;                  // queries, keys or features in a tile: a warp has a row
constexpr unsigned kWarps = 8;                  // in a thread block
constexpr unsigned kRowsEach = kTile / kWarps;  // rows in a tile where a thread has an element
constexpr unsigned kMostChunks = 4;             // chunks of features with sums in registers

using Tile = float[kTile][kTile + 1];  // a column is in different banks

// Holds all samples' head sizes and memory layout.
struct Heads {
  std::size_t heads, length, width, each;  // in a sample; the width of all heads and of each
  std::size_t input_row, output_row;       // from a token to the next
  float scale;
  bool causal;
  DropoutMask mask;
  const std::int32_t* keys;  // the samples' keys for the mask; null without dropout

  __device__ std::size_t tiles() const { return (length + kTile - 1) / kTile; }

  // Offsets in the input and in the output: the first token's queries (part 0), keys (1) or values (2) for a head.
  __device__ std::size_t in_input(std::size_t head, unsigned part) const {
    return head / heads * length * input_row + part * width + head % heads * each;
  }
  __device__ std::size_t in_output(std::size_t head) const {
    return head / heads * length * output_row + head % heads * each;
  }
  // Returns a weight's factor.
  __device__ float kept(std::size_t head, std::size_t query, std::size_t key) const {
    if (keys == nullptr) return 1;
    return mask.at(mask.of_sample(keys[head / heads]), (head % heads * length + query) * length + key);
  }
  __device__ bool sees(std::size_t query, std::size_t key) const { return key < length && (!causal || key <= query); }
};

// A head's features for all tokens.
template <class T>
struct Features {
  T* values;
  std::size_t row;

  // Loads a tile; elements outside are zero.
  __device__ void load(const Heads& h, std::size_t token, std::size_t feature, Tile& tile) const {
    for (unsigned y = threadIdx.y; y < kTile; y += kWarps) {
      const bool inside = token + y < h.length && feature + threadIdx.x < h.each;
      tile[y][threadIdx.x] = inside ? static_cast<float>(values[(token + y) * row + feature + threadIdx.x]) : 0;
    }
  }
};

template <class T>
struct Gradient {
  T* values;
  std::size_t row;
  bool accumulate;

  __device__ void put(const Heads& h, std::size_t token, std::size_t feature, float value) const {
    if (token >= h.length || feature >= h.each) return;
    T& target = values[token * row + feature];
    target = T(value + (accumulate ? static_cast<float>(target) : 0));
  }
};

// Multiplies a tile with a's rows and a tile with b's: rows threadIdx.y, + kWarps, ... of a with row threadIdx.x of b.
template <class T>
__device__ __forceinline__ void multiply_rows(const Heads& h, const Features<const T>& a, std::size_t of_a,
                                              const Features<const T>& b, std::size_t of_b, Tile& left, Tile& right,
                                              float (&sums)[kRowsEach]) {
#pragma unroll
  for (unsigned r = 0; r < kRowsEach; ++r) sums[r] = 0;
  for (std::size_t feature = 0; feature < h.each; feature += kTile) {
    __syncthreads();  // the tiles may still be read
    a.load(h, of_a, feature, left);
    b.load(h, of_b, feature, right);
    __syncthreads();
#pragma unroll
    for (unsigned r = 0; r < kRowsEach; ++r)
      for (unsigned k = 0; k < kTile; ++k) sums[r] += left[threadIdx.y + r * kWarps][k] * right[threadIdx.x][k];
  }
}

// Adds the products of weights {rows, tokens}, or their transpose, with these tokens' features, in `chunks` feature
// tiles from `first` on.
template <unsigned chunks, bool transposed, class T>
__device__ __forceinline__ void multiply_features(const Heads& h, const Tile& weights,
                                                  const Features<const T>& features, std::size_t token,
                                                  std::size_t first, Tile& tile, float (&sums)[kRowsEach][chunks]) {
#pragma unroll
  for (unsigned c = 0; c < chunks; ++c) {
    __syncthreads();
    features.load(h, token, first + c * kTile, tile);
    __syncthreads();
#pragma unroll
    for (unsigned r = 0; r < kRowsEach; ++r) {
      const unsigned row = threadIdx.y + r * kWarps;
      for (unsigned k = 0; k < kTile; ++k)
        sums[r][c] += (transposed ? weights[k][row] : weights[row][k]) * tile[k][threadIdx.x];
    }
  }
}

// `sums` becomes, per query, the logarithm of the exponentials' sum; null in inference.
template <class T, unsigned chunks>
__global__ void attention(Predecessor previous, Heads h, const T* input, float* sums, T* output) {
  await(previous);
  __shared__ Tile left, right, weights;
  const std::size_t head = blockIdx.x / h.tiles(), begin = blockIdx.x % h.tiles() * kTile;
  const std::size_t first = std::size_t{blockIdx.y} * chunks * kTile;
  const Features<const T> queries{input + h.in_input(head, 0), h.input_row};
  const Features<const T> keys{input + h.in_input(head, 1), h.input_row};
  const Features<const T> values{input + h.in_input(head, 2), h.input_row};
  float most[kRowsEach], total[kRowsEach]{}, made[kRowsEach][chunks]{};
#pragma unroll
  for (float& each : most) each = -INFINITY;
  const std::size_t end = h.causal && begin + kTile < h.length ? begin + kTile : h.length;
  for (std::size_t token = 0; token < end; token += kTile) {
    float scores[kRowsEach];
    multiply_rows(h, queries, begin, keys, token, left, right, scores);
#pragma unroll
    for (unsigned r = 0; r < kRowsEach; ++r) {
      const unsigned row = threadIdx.y + r * kWarps;
      const float score = h.sees(begin + row, token + threadIdx.x) ? scores[r] * h.scale : -INFINITY;
      const float largest = fmaxf(most[r], warp_max(score));  // not -INFINITY: every query sees the first key
      const float weight = expf(score - largest), factor = expf(most[r] - largest);
      total[r] = total[r] * factor + warp_sum(weight);
      most[r] = largest;
      weights[row][threadIdx.x] = weight * h.kept(head, begin + row, token + threadIdx.x);
#pragma unroll
      for (unsigned c = 0; c < chunks; ++c) made[r][c] *= factor;
    }
    multiply_features<chunks, false>(h, weights, values, token, first, right, made);
  }
  const Gradient<T> to{output + h.in_output(head), h.output_row, false};
#pragma unroll
  for (unsigned r = 0; r < kRowsEach; ++r) {
    const std::size_t query = begin + threadIdx.y + r * kWarps;
#pragma unroll
    for (unsigned c = 0; c < chunks; ++c) to.put(h, query, first + c * kTile + threadIdx.x, made[r][c] / total[r]);
    if (sums != nullptr && query < h.length && threadIdx.x == 0 && blockIdx.y == 0)
      sums[head * h.length + query] = most[r] + logf(total[r]);
  }
}

// Holds, for a query's backward pass, the logarithm of the exponentials' sum, and the product of output and output
// gradient.
struct Statistics {
  const float *sums, *products;
};

// Multiplies output and output gradient, for each query and head.
template <class T>
__global__ void output_products(Predecessor previous, Rows rows, Heads h, const T* output, const T* output_gradient,
                                float* products) {
  await(previous);
  rows.for_each([&](std::size_t row) {
    const std::size_t head = row / h.length, at = h.in_output(head) + row % h.length * h.output_row;
    float sum = 0;
    for (std::size_t i = threadIdx.x; i < h.each; i += Rows::kWarp)
      sum += static_cast<float>(output[at + i]) * static_cast<float>(output_gradient[at + i]);
    sum = warp_sum(sum);
    if (threadIdx.x == 0) products[row] = sum;
  });
}

// Computes a tile with attention weights P and factors M, and with the scores' gradients, P (M (dO V^T) - the query's
// product): {queries, keys}. `weights` may be null.
template <class T>
__device__ __forceinline__ void compute_slopes(const Heads& h, const T* input, const T* output_gradient,
                                               const Statistics& statistics, std::size_t head, std::size_t query,
                                               std::size_t key, Tile& left, Tile& right, Tile* weights, Tile& slopes) {
  const Features<const T> queries{input + h.in_input(head, 0), h.input_row};
  const Features<const T> keys{input + h.in_input(head, 1), h.input_row};
  const Features<const T> values{input + h.in_input(head, 2), h.input_row};
  const Features<const T> gradients{output_gradient + h.in_output(head), h.output_row};
  float scores[kRowsEach], products[kRowsEach];
  multiply_rows(h, queries, query, keys, key, left, right, scores);
  multiply_rows(h, gradients, query, values, key, left, right, products);
#pragma unroll
  for (unsigned r = 0; r < kRowsEach; ++r) {
    const unsigned row = threadIdx.y + r * kWarps;
    const bool seen = query + row < h.length && h.sees(query + row, key + threadIdx.x);
    const std::size_t at = head * h.length + query + row;
    const float weight = seen ? expf(scores[r] * h.scale - statistics.sums[at]) : 0;
    const float factor = h.kept(head, query + row, key + threadIdx.x);
    if (weights != nullptr) (*weights)[row][threadIdx.x] = weight * factor;
    slopes[row][threadIdx.x] = seen ? weight * (factor * products[r] - statistics.products[at]) : 0;
  }
}

// dQ = slopes K.
template <class T, unsigned chunks>
__global__ void query_gradients(Predecessor previous, Heads h, const T* input, const T* output_gradient,
                                Statistics statistics, InputGradient<T> to) {
  await(previous);
  __shared__ Tile left, right, slopes;
  const std::size_t head = blockIdx.x / h.tiles(), begin = blockIdx.x % h.tiles() * kTile;
  const std::size_t first = std::size_t{blockIdx.y} * chunks * kTile;
  const Features<const T> keys{input + h.in_input(head, 1), h.input_row};
  float made[kRowsEach][chunks]{};
  const std::size_t end = h.causal && begin + kTile < h.length ? begin + kTile : h.length;
  for (std::size_t token = 0; token < end; token += kTile) {
    compute_slopes(h, input, output_gradient, statistics, head, begin, token, left, right, nullptr, slopes);
    multiply_features<chunks, false>(h, slopes, keys, token, first, right, made);
  }
  const Gradient<T> gradient{to.values + h.in_input(head, 0), h.input_row, to.accumulate};
#pragma unroll
  for (unsigned r = 0; r < kRowsEach; ++r)
#pragma unroll
    for (unsigned c = 0; c < chunks; ++c)
      gradient.put(h, begin + threadIdx.y + r * kWarps, first + c * kTile + threadIdx.x, made[r][c] * h.scale);
}

// dK = slopes^T Q, dV = (M P)^T dO.
template <class T, unsigned chunks>
__global__ void key_gradients(Predecessor previous, Heads h, const T* input, const T* output_gradient,
                              Statistics statistics, InputGradient<T> to) {
  await(previous);
  __shared__ Tile left, right, weights, slopes;
  const std::size_t head = blockIdx.x / h.tiles(), begin = blockIdx.x % h.tiles() * kTile;
  const std::size_t first = std::size_t{blockIdx.y} * chunks * kTile;
  const Features<const T> queries{input + h.in_input(head, 0), h.input_row};
  const Features<const T> gradients{output_gradient + h.in_output(head), h.output_row};
  float to_keys[kRowsEach][chunks]{}, to_values[kRowsEach][chunks]{};
  for (std::size_t token = h.causal ? begin : 0; token < h.length; token += kTile) {
    compute_slopes(h, input, output_gradient, statistics, head, token, begin, left, right, &weights, slopes);
    multiply_features<chunks, true>(h, slopes, queries, token, first, right, to_keys);
    multiply_features<chunks, true>(h, weights, gradients, token, first, right, to_values);
  }
  const Gradient<T> of_keys{to.values + h.in_input(head, 1), h.input_row, to.accumulate};
  const Gradient<T> of_values{to.values + h.in_input(head, 2), h.input_row, to.accumulate};
#pragma unroll
  for (unsigned r = 0; r < kRowsEach; ++r)
#pragma unroll
    for (unsigned c = 0; c < chunks; ++c) {
      const std::size_t key = begin + threadIdx.y + r * kWarps, feature = first + c * kTile + threadIdx.x;
      of_keys.put(h, key, feature, to_keys[r][c] * h.scale);
      of_values.put(h, key, feature, to_values[r][c]);
    }
}

template <class T>
class AttentionOp : public Op {
 public:
  AttentionOp(const Attention& operation, const Specs& inputs, const TensorSpec& output, Mode mode, Context& context)
      : context_(context),
        drops_(operation.dropout > 0 && mode == Mode::training),
        batch_(inputs[0].shape[0]),
        heads_(heads(operation, inputs[0], output)) {
    info_.output = output;
    info_.inputs.resize(inputs.size());
    info_.inputs[0].adds_to_gradient = true;
    using Pass = AttentionProblem::Pass;
    if (!drops_) forward_ = context.attention->plan(problem(mode == Mode::training ? Pass::forward : Pass::inference));
    if (mode != Mode::training) return;
    const std::size_t bytes = batch_ * heads_.heads * heads_.length * sizeof(float);
    sums_ = allocate_device(bytes);
    products_ = allocate_device(bytes);
  }

  // The backward pass is planned only now, because the bindings determine whether it accumulates, as only ours can.
  void bind(const Bindings& bindings) override {
    bindings_ = bindings;
    if (drops_) heads_.keys = data<std::int32_t>(bindings.inputs[1]);
    const bool plans_backward = InputGradient<T>(bindings, 0).wanted() && !bindings.accumulates(0) && !drops_;
    backward_ = plans_backward ? context_.attention->plan(problem(AttentionProblem::Pass::backward)) : nullptr;
    std::size_t bytes = 0;
    for (const auto* plan : {&forward_, &backward_})
      if (*plan) bytes = std::max(bytes, (*plan)->workspace_bytes());
    if (bytes > 0) workspace_ = context_.workspace(bytes);
  }

  void forward() override {
    const DeviceView to = bindings_.output;
    if (heads_.output_row != heads_.width) check(cudaMemsetAsync(to.address, 0, to.bytes, lane()));  // padding
    if (forward_) return forward_->run(operands(), workspace_, lane());
    with_chunks([&](auto chunks) {
      run(attention<T, chunks>, chunks, data<T>(bindings_.inputs[0]), data<float>(sums_.view()), data<T>(to));
    });
  }

  void backward(float) override {
    const InputGradient<T> to(bindings_, 0);
    if (!to.wanted()) return;
    const T *input = data<T>(bindings_.inputs[0]), *gradient = data<T>(bindings_.output_gradient);
    float* products = data<float>(products_.view());
    const Statistics statistics{data<float>(sums_.view()), products};
    if (const DeviceView view = bindings_.input_gradients[0]; heads_.input_row != 3 * heads_.width && !to.accumulate)
      check(cudaMemsetAsync(view.address, 0, view.bytes, lane()));  // padding
    if (backward_) return backward_->run(operands(), workspace_, lane());
    over_rows(output_products<T>, Rows{batch_ * heads_.heads * heads_.length, 0, 0, 0}, context_, heads_,
              data<T>(bindings_.output), gradient, products);
    with_chunks([&](auto chunks) {
      run(query_gradients<T, chunks>, chunks, input, gradient, statistics, to);
      run(key_gradients<T, chunks>, chunks, input, gradient, statistics, to);
    });
  }

 private:
  static Heads heads(const Attention& operation, const TensorSpec& input, const TensorSpec& output) {
    const std::size_t width = output.shape[2], each = width / operation.heads;
    return {operation.heads,
            input.shape[1],
            width,
            each,
            channels_last(input).channels(),
            channels_last(output).channels(),
            1 / std::sqrt(static_cast<float>(each)),
            operation.causal,
            {operation.dropout, operation.number},
            nullptr};
  }

  cudaStream_t lane() const { return context_.lane.get(); }

  AttentionProblem problem(AttentionProblem::Pass pass) const {
    return {pass,          context_.precision, heads_.causal,    batch_,           heads_.heads,
            heads_.length, heads_.each,        heads_.input_row, heads_.output_row};
  }

  AttentionOperands operands() const {
    return {.input = bindings_.inputs[0].address,
            .output = bindings_.output.address,
            .sums = data<float>(sums_.view()),
            .products = data<float>(products_.view()),
            .output_gradient = bindings_.output_gradient.address,
            .input_gradient = bindings_.input_gradients.empty() ? nullptr : bindings_.input_gradients[0].address};
  }

  // Calls body(how many feature tiles a block sums up, as a constant).
  template <class Body>
  void with_chunks(const Body& body) const {
    if (heads_.each <= kTile) return body(std::integral_constant<unsigned, 1>{});
    if (heads_.each <= 2 * kTile) return body(std::integral_constant<unsigned, 2>{});
    body(std::integral_constant<unsigned, kMostChunks>{});
  }

  // Runs a block for each head's token tiles, and for each `chunks` feature tiles.
  template <class Kernel, class... Arguments>
  void run(Kernel kernel, unsigned chunks, Arguments... arguments) const {
    const std::size_t tiles = (heads_.length + kTile - 1) / kTile * heads_.heads * batch_;
    const std::size_t groups = (heads_.each + chunks * kTile - 1) / (chunks * kTile);
    launch(kernel, dim3(static_cast<unsigned>(tiles), static_cast<unsigned>(groups)), dim3(kTile, kWarps), lane(),
           heads_, arguments...);
  }

  Context& context_;
  bool drops_;
  std::size_t batch_;
  Heads heads_;
  Buffer sums_, products_;                             // see Statistics; empty in inference
  std::unique_ptr<AttentionPlan> forward_, backward_;  // null if our kernels compute the pass
  Bindings bindings_;
  void* workspace_ = nullptr;
};

}  // namespace

std::unique_ptr<Op> plan(const Attention& operation, const Specs& inputs, Mode mode, Context& context) {
  const Shape& in = inputs[0].shape;
  const TensorSpec output = last_spec({in[0], in[1], in[2] / 3}, context.type());
  return make_for<Op, AttentionOp>(context.type(), operation, inputs, output, mode, context);
}

}  // namespace annulus::cuda
