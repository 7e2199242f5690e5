#include <algorithm>
#include <map>

#include "kernels/cuda/ops/loops/input_gradient.h"
#include "kernels/cuda/ops/loss/class_labels.h"

namespace annulus::cuda {
namespace {

constexpr unsigned kThreads = 256;
constexpr std::size_t kBlock = 1024;  // tokens with logits computed together

// A token's loss, whether it is predicted, and whether it is not missing.
struct TokenLoss {
  float loss, hit, present;
};

struct Windows {
  const std::int32_t* tokens;
  std::uint32_t length, vocabulary;

  // Returns the token to be predicted after this token; below 0 if it is missing.
  __device__ std::int32_t target(std::size_t token) const {
    const std::int32_t target = tokens[token / length * (length + 1) + token % length + 1];
    return target < static_cast<std::int32_t>(vocabulary) ? target : -1;
  }
};

// Runs a block, a single column of threads, for each token from `first` on: stores the token's loss and, if
// `loss_scale` is not null, replaces the logits by weight * (probabilities - target probabilities).
template <class T>
__global__ void token_losses(Predecessor previous, T* logits, std::size_t stride, Windows windows, std::size_t first,
                             float weight, const float* loss_scale, TokenLoss* losses) {
  await(previous);
  T* row = logits + blockIdx.x * stride;
  const std::size_t token = first + blockIdx.x;
  const std::int32_t target = windows.target(token);
  const auto label = static_cast<std::uint32_t>(target);
  float largest = 0, inverse = 0;
  if (target >= 0) {
    const auto of_label = static_cast<float>(row[label]);
    Maximum found[1]{{-INFINITY}};
    for_each_logit(row, windows.vocabulary,
                   [&](float logit, std::uint32_t) { found[0] = combined(found[0], {logit}); });
    add_up_block(found);
    largest = found[0].value;
    Sums<2> sums[1]{};
    for_each_logit(row, windows.vocabulary, [&](float logit, std::uint32_t c) {
      sums[0].of[0] += expf(logit - largest);
      sums[0].of[1] += ranks_above(logit, c, of_label, label);
    });
    add_up_block(sums);
    inverse = 1 / sums[0].of[0];
    if (threadIdx.y == 0) losses[token] = {logf(sums[0].of[0]) + largest - of_label, sums[0].of[1] == 0 ? 1.0f : 0, 1};
  } else if (threadIdx.y == 0) {
    losses[token] = {0, 0, 0};
  }
  if (loss_scale == nullptr) return;
  const float scaled = target >= 0 ? weight * *loss_scale : 0;
  for (std::uint32_t vector = threadIdx.y; vector < stride / kLanes<T>; vector += blockDim.y) {
    Vector<T> values = load(row, vector);
    for (unsigned k = 0; k < kLanes<T>; ++k) {
      const std::uint32_t c = vector * kLanes<T> + k;
      const float wanted = c == label ? 1.0f : 0;
      values.at[k] =
          target >= 0 && c < windows.vocabulary ? scaled * (expf(values.at[k] - largest) * inverse - wanted) : 0;
    }
    store(values, row, vector);
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
__global__ void add_up_tokens(Predecessor previous, const TokenLoss* losses, std::size_t tokens, float length,
                              float sample_weight, float* sums, float* metrics) {
  await(previous);
  Totals totals[1]{};
  for (std::size_t i = threadIdx.y; i < tokens; i += blockDim.y)
    totals[0] = combined(totals[0], {losses[i].loss, losses[i].hit, losses[i].present});
  add_up_block(totals);
  if (threadIdx.y > 0) return;
  sums[0] = static_cast<float>(totals[0].loss / length);
  sums[1] = static_cast<float>(totals[0].hits / length);
  sums[2] = static_cast<float>(totals[0].present / length);
  if (metrics == nullptr) return;
  metrics[0] = sample_weight * sums[0];
  metrics[1] = sample_weight * sums[1];
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
      : mode_(mode), context_(context), length_(inputs[0].shape[1]), tokens_(inputs[0].shape[0] * length_) {
    const auto plain = [](std::size_t size) {
      return TensorSpec{{size}, DataType::f32, std::make_shared<Plain>(Shape{size}, DataType::f32)};
    };
    info_.output = plain(3);
    info_.parameters = {plain(2), weights_spec({operation.vocabulary, inputs[0].shape[2]}, context.type())};
    info_.skips_parameter_gradients = true;
    vocabulary_ = operation.vocabulary;
    width_ = channels_last(inputs[0]).channels();
    stride_ = channels_last(info_.parameters[1]).outer();
    logits_ = allocate_device(std::min(kBlock, tokens_) * stride_ * sizeof(T));
    losses_ = allocate_device(tokens_ * sizeof(TokenLoss));
    for_each_block([&](std::size_t, std::size_t count) {
      if (!products_.contains(count)) products_.emplace(count, plan_products(count));
    });
  }

  void bind(const Bindings& bindings) override {
    bindings_ = bindings;
    weights_ = context_.type() == DataType::f32 ? bindings.parameters[1] : bindings.copies[1];
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
    const float weight = sample_weight / static_cast<float>(length_);
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
    });
    store_sums(sample_weight, data<float>(bindings_.parameter_gradients[0]));
  }

 private:
  Products plan_products(std::size_t count) const {
    const auto plan = [&](const MatmulProblem& problem) { return context_.matmuls->plan(problem); };
    Products products;
    products.logits = plan(
        {.precision = context_.precision, .rows = count, .columns = stride_, .inner = width_, .b_transposed = true});
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

  // Calls work(first token, number).
  template <class Work>
  void for_each_block(const Work& work) const {
    for (std::size_t first = 0; first < tokens_; first += kBlock) work(first, std::min(kBlock, tokens_ - first));
  }

  void compute_losses(std::size_t first, std::size_t count, float weight, const float* loss_scale) {
    products_.at(count).logits->run({hidden(first), weights_.address, logits()}, workspace_, lane());
    const Windows windows{data<std::int32_t>(bindings_.inputs[1]), static_cast<std::uint32_t>(length_),
                          static_cast<std::uint32_t>(vocabulary_)};
    launch(token_losses<T>, static_cast<unsigned>(count), dim3(1, kThreads), lane(), logits(), stride_, windows, first,
           weight, loss_scale, losses());
  }

  void store_sums(float sample_weight, float* metrics) {
    launch(add_up_tokens, 1, dim3(1, kThreads), lane(), losses(), tokens_, static_cast<float>(length_), sample_weight,
           data<float>(bindings_.output), metrics);
  }

  cudaStream_t lane() const { return context_.lane.get(); }
  T* logits() const { return data<T>(logits_.view()); }
  TokenLoss* losses() const { return data<TokenLoss>(losses_.view()); }
  const T* hidden(std::size_t token) const { return data<T>(bindings_.inputs[0]) + token * width_; }

  Mode mode_;
  Context& context_;
  std::size_t length_, tokens_, vocabulary_ = 0;
  std::size_t width_ = 0, stride_ = 0;        // a row of hidden values and a row of logits, padding included
  Buffer logits_, losses_;                    // logits_: for a block
  std::map<std::size_t, Products> products_;  // by token count
  Bindings bindings_;
  DeviceView weights_;  // in the value type
  void* workspace_ = nullptr;
};

}  // namespace

std::unique_ptr<Op> plan(const LanguageModelHead& operation, const Specs& inputs, Mode mode, Context& context) {
  return make_for<Op, LanguageModelHeadOp>(context.type(), operation, inputs, mode, context);
}

}  // namespace annulus::cuda
