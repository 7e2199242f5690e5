#include <algorithm>
#include <map>

#include "kernels/cuda/ops/loops/input_gradient.h"
#include "kernels/cuda/ops/loops/over_vectors.h"
#include "kernels/cuda/ops/loss/class_labels.h"

namespace annulus::cuda {
namespace {

constexpr unsigned kThreads = 256;
// How many tokens' logits are computed together. In larger blocks products are faster, and add the gradients of weights
// to the arena less often; from a tile of the hidden gradient's product for each multiprocessor on, nothing is gained.
constexpr std::size_t kLeastBlock = 1024, kTile = 128;
// Logits may take 1 / kMemoryShare of the device's memory: with GPT-2's vocabulary in 16 bits 80 GB suffice for 12,700
// tokens.
constexpr std::size_t kMemoryShare = 64;

// Bytes of rows that are read twice in a short time, so that the second time they are in the L2 cache (40 MB on an
// A100, 50 MB on a H100).
constexpr std::size_t kCached = 32 << 20;

// A token's loss, whether it is predicted, and whether it is not missing.
struct TokenLoss {
  float loss, hit, present;
};

struct Windows {
  const std::int32_t* tokens;
  std::uint32_t length, size, predicted, vocabulary;  // see WindowForm

  // Returns the token to be predicted from this token's hidden values; below 0 if it is missing.
  __device__ std::int32_t target(std::size_t token) const {
    const std::int32_t target = tokens[token / length * size + token % length + predicted];
    return target < static_cast<std::int32_t>(vocabulary) ? target : -1;
  }
};

// The largest logit, the sum over exp(logit - largest), and how many logits rank above the target.
struct Softmax {
  float largest, sum, above;
};
// (Without logits the largest is infinite, and the difference to it not a number.)
__device__ float scaled_sum(const Softmax& softmax, float largest) {
  return softmax.largest == largest ? softmax.sum : softmax.sum * expf(softmax.largest - largest);
}
__device__ Softmax combined(const Softmax& a, const Softmax& b) {
  const float largest = fmaxf(a.largest, b.largest);
  return {largest, scaled_sum(a, largest) + scaled_sum(b, largest), a.above + b.above};
}

// Calls body(vector, values) for the thread's vectors in a row. Loads several at a time.
template <class T, class Body>
__device__ void for_each_vector(const T* row, std::uint32_t vectors, const Body& body) {
  constexpr unsigned kBatch = 4;
  Packed<T> loaded[kBatch];
  for (std::uint32_t first = threadIdx.y; first < vectors; first += kBatch * blockDim.y) {
    for (unsigned i = 0; i < kBatch; ++i)
      if (first + i * blockDim.y < vectors) loaded[i] = fetch(row, first + i * blockDim.y);
    for (unsigned i = 0; i < kBatch; ++i)
      if (first + i * blockDim.y < vectors) body(first + i * blockDim.y, unpacked<T>(loaded[i]));
  }
}

// Returns the softmax of a row's logits, for all threads in the block. Reads the row once: the sum is scaled whenever a
// larger logit is found (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018).
template <class T>
__device__ Softmax softmax_of(const T* row, std::uint32_t vocabulary, std::uint32_t label) {
  const auto of_label = static_cast<float>(row[label]);
  Softmax found[1]{{-INFINITY, 0, 0}};
  for_each_vector(row, (vocabulary + kLanes<T> - 1) / kLanes<T>, [&](std::uint32_t vector, const Vector<T>& logits) {
    const std::uint32_t first = vector * kLanes<T>, left = vocabulary - first;
    const std::uint32_t used = left < kLanes<T> ? left : kLanes<T>;
    float largest = found[0].largest;
    for (unsigned k = 0; k < used; ++k) largest = fmaxf(largest, logits.at[k]);
    found[0].sum = scaled_sum(found[0], largest);
    found[0].largest = largest;
    for (unsigned k = 0; k < used; ++k) {
      found[0].sum += expf(logits.at[k] - largest);
      found[0].above += ranks_above(logits.at[k], first + k, of_label, label) ? 1.0f : 0.0f;
    }
  });
  add_up_block(found);
  return found[0];
}

// Runs a block, a single column of threads, for some of `count` tokens from `first` on: stores the token's loss and, if
// `loss_scale` is not null, replaces the logits by weight * (probabilities - target probabilities).
template <class T>
__global__ void token_losses(Predecessor previous, T* logits, std::size_t stride, Windows windows, std::size_t first,
                             std::size_t count, float weight, const float* loss_scale, TokenLoss* losses) {
  await(previous);
  for (std::size_t i = blockIdx.x; i < count; i += gridDim.x) {
    T* row = logits + i * stride;
    const std::size_t token = first + i;
    const std::int32_t target = windows.target(token);
    const auto label = static_cast<std::uint32_t>(target);
    Softmax softmax{};
    TokenLoss loss{};
    if (target >= 0) {
      const auto of_label = static_cast<float>(row[label]);
      softmax = softmax_of(row, windows.vocabulary, label);
      loss = {logf(softmax.sum) + softmax.largest - of_label, softmax.above == 0 ? 1.0f : 0, 1};
    }
    if (threadIdx.y == 0) losses[token] = loss;
    if (loss_scale == nullptr) continue;
    const float scaled = target >= 0 ? weight * *loss_scale : 0, inverse = 1 / softmax.sum;
    for_each_vector(row, static_cast<std::uint32_t>(stride / kLanes<T>), [&](std::uint32_t vector, Vector<T> values) {
      for (unsigned k = 0; k < kLanes<T>; ++k) {
        const std::uint32_t c = vector * kLanes<T> + k;
        const float wanted = c == label ? 1.0f : 0;
        values.at[k] = target >= 0 && c < windows.vocabulary
                           ? scaled * (expf(values.at[k] - softmax.largest) * inverse - wanted)
                           : 0;
      }
      store(values, row, vector);
    });
  }
}

struct Totals {
  double loss, hits, present;
};
__device__ Totals combined(const Totals& a, const Totals& b) {
  return {a.loss + b.loss, a.hits + b.hits, a.present + b.present};
}

// Runs a block with a single column of threads, so the order of the sums depends only on the token count. `metrics` is
// null in inference.
__global__ void add_up_tokens(Predecessor previous, const TokenLoss* losses, std::size_t tokens, float targets,
                              float sample_weight, float* sums, float* metrics) {
  await(previous);
  Totals totals[1]{};
  for (std::size_t i = threadIdx.y; i < tokens; i += blockDim.y)
    totals[0] = combined(totals[0], {losses[i].loss, losses[i].hit, losses[i].present});
  add_up_block(totals);
  if (threadIdx.y > 0) return;
  sums[0] = static_cast<float>(totals[0].loss / targets);
  sums[1] = static_cast<float>(totals[0].hits / targets);
  sums[2] = static_cast<float>(totals[0].present / targets);
  if (metrics == nullptr) return;
  metrics[0] = sample_weight * sums[0];
  metrics[1] = sample_weight * sums[1];
}

// Adds a block's columns up to the bias's gradient. `vectors`: in a row.
template <class T>
__global__ void add_up_rows(Predecessor previous, const T* logits, std::size_t rows, bool first, const float* unscale,
                            float* to, std::size_t vectors) {
  await(previous);
  for (std::size_t i = grid_thread(); i < vectors; i += grid_threads()) {
    Vector<T> sum{};
    for (std::size_t row = 0; row < rows; ++row) {
      const Vector<T> more = load(logits, row * vectors + i);
      for (unsigned k = 0; k < kLanes<T>; ++k) sum.at[k] += more.at[k];
    }
    for (float& value : sum.at) value *= *unscale;
    if (!first) {
      const Vector<T> before = load_floats<kLanes<T>>(to + i * kLanes<T>);
      for (unsigned k = 0; k < kLanes<T>; ++k) sum.at[k] += before.at[k];
    }
    store_floats(sum, to + i * kLanes<T>);
  }
}

// The products for a block of tokens.
struct Products {
  std::unique_ptr<Matmul> logits, hidden_gradient, first_weights, more_weights;

  std::size_t workspace_bytes() const {
    std::size_t bytes = logits->workspace_bytes();
    for (const auto* product : {&hidden_gradient, &first_weights, &more_weights})
      if (*product) bytes = std::max(bytes, (*product)->workspace_bytes());
    return bytes;
  }
};

template <class T>
class LanguageModelHeadOp : public Op {
 public:
  LanguageModelHeadOp(const LanguageModelHead& operation, const Specs& inputs, Mode mode, Context& context)
      : mode_(mode),
        context_(context),
        bias_(operation.bias),
        form_(window_form(inputs[1].shape)),
        tokens_(inputs[0].shape[0] * form_.length) {
    const auto plain = [](std::size_t size) {
      return TensorSpec{{size}, DataType::f32, std::make_shared<Plain>(Shape{size}, DataType::f32)};
    };
    info_.output = plain(3);
    info_.parameters = {plain(2), weights_spec({operation.vocabulary, inputs[0].shape[2]}, context.type())};
    if (bias_) info_.parameters.push_back(channels_spec({operation.vocabulary}, context.type()));
    info_.skips_parameter_gradients = true;
    vocabulary_ = operation.vocabulary;
    width_ = channels_last(inputs[0]).channels();
    stride_ = channels_last(info_.parameters[1]).outer();
    block_ = block_size();
    logits_ = allocate_device(block_ * stride_ * sizeof(T));
    losses_ = allocate_device(tokens_ * sizeof(TokenLoss));
    for_each_block([&](std::size_t, std::size_t count) {
      if (!products_.contains(count)) products_.emplace(count, plan_products(count));
    });
  }

  void bind(const Bindings& bindings) override {
    bindings_ = bindings;
    const auto& parameters = context_.type() == DataType::f32 ? bindings.parameters : bindings.copies;
    weights_ = parameters[1];
    if (bias_) bias_values_ = parameters[2];
    std::size_t bytes = 0;
    for (const auto& [count, products] : products_) bytes = std::max(bytes, products.workspace_bytes());
    workspace_ = context_.workspace(bytes);
  }

  // In training, backward computes the loss as well, because there the logits are needed again.
  void forward() override {
    if (mode_ == Mode::training) return;
    for_each_block([&](std::size_t first, std::size_t count) { compute_losses(first, count, 0, nullptr); });
    store_sums(0, nullptr);
  }

  void backward(float sample_weight) override {
    const float weight = sample_weight / static_cast<float>(form_.targets());
    const InputGradient<T> to(bindings_, 0);
    for_each_block([&](std::size_t first, std::size_t count) {
      compute_losses(first, count, weight, context_.loss_scale);
      const Products& products = products_.at(count);
      if (to.wanted())
        products.hidden_gradient->run({logits(), weights_.address, to.values + first * width_}, workspace_, lane());
      if (const DeviceView weights = bindings_.parameter_gradients[1])
        (first == 0 ? products.first_weights : products.more_weights)
            ->run({.a = logits(), .b = hidden(first), .output = weights.address, .factor = context_.unscale},
                  workspace_, lane());
      if (bias_ && bindings_.parameter_gradients[2])
        over_vectors(add_up_rows<T>, stride_ / kLanes<T>, context_, logits(), count, first == 0, context_.unscale,
                     data<float>(bindings_.parameter_gradients[2]));
    });
    store_sums(sample_weight, data<float>(bindings_.parameter_gradients[0]));
  }

 private:
  Products plan_products(std::size_t count) const {
    const auto plan = [&](const MatmulProblem& problem) { return context_.matmuls->plan(problem); };
    Products products;
    products.logits = plan({.precision = context_.precision,
                            .rows = count,
                            .columns = stride_,
                            .inner = width_,
                            .b_transposed = true,
                            .bias = bias_});
    if (mode_ == Mode::inference) return products;
    products.hidden_gradient =
        plan({.precision = context_.precision, .rows = count, .columns = width_, .inner = stride_});
    const auto weights = [&](bool accumulate) {
      return plan({.precision = context_.precision,
                   .rows = stride_,
                   .columns = width_,
                   .inner = count,
                   .a_transposed = true,
                   .wide_output = true,
                   .accumulate = accumulate});
    };
    products.first_weights = weights(false);
    products.more_weights = weights(true);
    return products;
  }

  // Returns a size that makes blocks about equal.
  std::size_t block_size() const {
    std::size_t free = 0, memory = 0;
    check(cudaMemGetInfo(&free, &memory));
    const std::size_t tiles = static_cast<std::size_t>(context_.multiprocessors) * kTile;
    const std::size_t most = std::max(kLeastBlock, std::min(tiles, memory / kMemoryShare / (stride_ * sizeof(T))));
    const std::size_t blocks = (tokens_ + most - 1) / most;
    return (tokens_ + blocks - 1) / blocks;
  }

  // Calls work(first token, number).
  template <class Work>
  void for_each_block(const Work& work) const {
    for (std::size_t first = 0; first < tokens_; first += block_) work(first, std::min(block_, tokens_ - first));
  }

  void compute_losses(std::size_t first, std::size_t count, float weight, const float* loss_scale) {
    products_.at(count).logits->run(
        {.a = hidden(first), .b = weights_.address, .output = logits(), .bias = bias_values_.address}, workspace_,
        lane());
    const auto number = [](std::size_t value) { return static_cast<std::uint32_t>(value); };
    const Windows windows{data<std::int32_t>(bindings_.inputs[1]), number(form_.length), number(form_.size()),
                          number(form_.predicted()), number(vocabulary_)};
    const std::size_t rows = std::max<std::size_t>(context_.multiprocessors, kCached / (stride_ * sizeof(T)));
    launch(token_losses<T>, static_cast<unsigned>(std::min(rows, count)), dim3(1, kThreads), lane(), logits(), stride_,
           windows, first, count, weight, loss_scale, losses());
  }

  void store_sums(float sample_weight, float* metrics) {
    launch(add_up_tokens, 1, dim3(1, kThreads), lane(), losses(), tokens_, static_cast<float>(form_.targets()),
           sample_weight, data<float>(bindings_.output), metrics);
  }

  cudaStream_t lane() const { return context_.lane.get(); }
  T* logits() const { return data<T>(logits_.view()); }
  TokenLoss* losses() const { return data<TokenLoss>(losses_.view()); }
  const T* hidden(std::size_t token) const { return data<T>(bindings_.inputs[0]) + token * width_; }

  Mode mode_;
  Context& context_;
  bool bias_;
  WindowForm form_;
  std::size_t tokens_, vocabulary_ = 0, block_ = 0;
  std::size_t width_ = 0, stride_ = 0;        // a row of hidden values and a row of logits, padding included
  Buffer logits_, losses_;                    // logits_: for a block
  std::map<std::size_t, Products> products_;  // by token count
  Bindings bindings_;
  DeviceView weights_, bias_values_;  // in the value type
  void* workspace_ = nullptr;
};

}  // namespace

std::unique_ptr<Op> plan(const LanguageModelHead& operation, const Specs& inputs, Mode mode, Context& context) {
  return make_for<Op, LanguageModelHeadOp>(context.type(), operation, inputs, mode, context);
}

}  // namespace annulus::cuda
