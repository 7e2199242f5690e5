#include <oneapi/dnnl/dnnl.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/base/error.h"
#include "kernels/base/split.h"
#include "kernels/cpu/dense/linear_forward.h"
#include "kernels/cpu/loops/math.h"
#include "kernels/cpu/plan/class_labels.h"
#include "kernels/cpu/plan/plain_op.h"

namespace annulus::cpu {
namespace {

// Tokens with logits computed together. The weights and their gradient, which may be larger than the caches, are read
// once for each block.
constexpr std::size_t kBlock = 512;

// Rows of the weights' gradient that are computed together and then reported as final; GPT-2's has 50,257.
constexpr std::size_t kRows = 4096;

// A row-major matrix in memory, perhaps transposed.
struct Matrix {
  const float* values;
  std::size_t row;  // distance between rows in memory
  bool transposed = false;
};

// Computes to = a b or, with `add`, to += a b, for a {rows, inner} and row-major b {inner, columns}.
void multiply(const Matrix& a, const float* b, std::size_t rows, std::size_t columns, std::size_t inner, bool add,
              float* to) {
  const auto dim = [](std::size_t size) { return static_cast<dnnl_dim_t>(size); };
  const dnnl_status_t status = dnnl_sgemm(a.transposed ? 'T' : 'N', 'N', dim(rows), dim(columns), dim(inner), 1,
                                          a.values, dim(a.row), b, dim(columns), add ? 1.0f : 0.0f, to, dim(columns));
  if (status != dnnl_success) fail("oneDNN cannot multiply matrices of {}x{}x{}", rows, columns, inner);
}

class LanguageModelHeadOp : public PlainOp {
 public:
  LanguageModelHeadOp(const LanguageModelHead& operation, const Specs& inputs, Mode mode)
      : PlainOp(inputs, {3}),
        mode_(mode),
        bias_(operation.bias),
        form_(window_form(inputs[1].shape)),
        width_(inputs[0].shape[2]),
        tokens_(inputs[0].shape[0] * form_.length),
        vocabulary_(operation.vocabulary),
        targets_(tokens_),
        losses_(tokens_),
        hits_(tokens_) {
    declare(operation.parameters({inputs[0].shape, inputs[1].shape}));
    std::size_t scratch = 0;
    for (std::size_t block = 0; block * kBlock < tokens_; ++block) {
      products_.push_back(plan_linear_forward(tokens_of(block).size(), width_, vocabulary_, bias_));
      scratch = std::max(scratch, products_.back().scratch_bytes());
    }
    need_scratch(logits_bytes() + scratch);
  }

  void report_gradients(const ReportFinal& final) override { report_ = final; }

 private:
  void bound() override {
    const DeviceView logits = own_scratch().slice(0, logits_bytes());
    const DeviceView scratch = own_scratch().slice(logits.bytes, own_scratch().bytes - logits.bytes);
    for (std::size_t block = 0; block < products_.size(); ++block) {
      const Range tokens = tokens_of(block);
      const std::size_t row = width_ * sizeof(float);
      std::vector<DeviceView> views{input_view(0).slice(tokens.begin * row, tokens.size() * row), logits,
                                    bindings().parameters[1]};
      if (bias_) views.push_back(bindings().parameters[2]);
      products_[block].bind(views, scratch);
    }
  }

  std::size_t logits_bytes() const { return tokens_of(0).size() * vocabulary_ * sizeof(float); }
  Range tokens_of(std::size_t block) const { return {block * kBlock, std::min((block + 1) * kBlock, tokens_)}; }

  // In training, differentiate() computes the loss as well, because there the logits are needed again.
  void compute() override {
    if (mode_ == Mode::training) return;
    for_each_block([&](Range tokens) {
#pragma omp parallel for schedule(static)
      for (std::size_t i = 0; i < tokens.size(); ++i) measure(tokens.begin + i, logits(i));
    });
    store_sums();
  }

  void differentiate() override {
    const float weight = sample_weight() / static_cast<float>(form_.targets());
    float* hidden_gradient = input_gradient(0);
    for_each_block([&](Range tokens) {
      const auto [first, count] = std::pair(tokens.begin, tokens.size());
#pragma omp parallel for schedule(static)
      for (std::size_t i = 0; i < count; ++i) write_gradient(first + i, weight, logits(i));
      const bool last = tokens.end == tokens_;
      if (last) {
        store_sums();
        for (std::size_t i = 0; i < 2; ++i) parameter_gradient(0)[i] = sample_weight() * output()[i];
      }
      // The weights' gradient comes first, because it may be sent while the hidden values' gradient is computed.
      if (bias_ && parameter_gradient(2) != nullptr) add_bias_gradient(first, count);
      if (parameter_gradient(1) != nullptr) write_weight_gradient(first, count, last);
      if (hidden_gradient != nullptr)
        multiply({logits(0).data(), vocabulary_}, parameter(1), count, width_, vocabulary_, false,
                 hidden_gradient + first * width_);
    });
  }

  // Adds a block's gradient to the gradient of earlier blocks.
  void write_weight_gradient(std::size_t first, std::size_t count, bool last) {
    for (std::size_t row = 0; row < vocabulary_; row += kRows) {
      const std::size_t rows = std::min(kRows, vocabulary_ - row);
      multiply({logits(0).data() + row, vocabulary_, true}, input(0) + first * width_, rows, width_, count, first > 0,
               parameter_gradient(1) + row * width_);
      if (last && report_) report_(1, (row + rows) * width_);
    }
  }

  void add_bias_gradient(std::size_t first, std::size_t count) {
    float* to = parameter_gradient(2);
    if (first == 0) std::fill_n(to, vocabulary_, 0.0f);
#pragma omp parallel for schedule(static)
    for (std::size_t row = 0; row < vocabulary_; row += kRows)
      for (std::size_t i = 0; i < count; ++i)
        for (std::size_t c = row; c < std::min(row + kRows, vocabulary_); ++c) to[c] += logits(i)[c];
  }

  // Calls work(tokens) for each block when the logits are computed.
  template <class Work>
  void for_each_block(const Work& work) {
    take_tokens(integers(input_view(1)), form_, vocabulary_, form_.predicted(), targets_);
    for (std::size_t block = 0; block < products_.size(); ++block) {
      products_[block].run();
      work(tokens_of(block));
    }
  }

  std::span<float> logits(std::size_t number) const {  // the logits for a token in the block
    return floats(own_scratch()).subspan(number * vocabulary_, vocabulary_);
  }

  // Stores a token's loss, and whether it is predicted. Replaces the logits by their exponentials divided by the
  // largest, and returns the sum; 0 if the token is missing.
  float measure(std::size_t token, std::span<float> logits) {
    losses_[token] = 0;
    hits_[token] = false;
    if (targets_[token] < 0) return 0;
    const auto label = static_cast<std::size_t>(targets_[token]);
    const float own = logits[label];
    hits_[token] = count_larger(logits, label) == 0;
    float* values = logits.data();
    float largest = values[0];
#pragma omp simd reduction(max : largest)
    for (std::size_t i = 1; i < vocabulary_; ++i) largest = std::max(largest, values[i]);
    constexpr std::size_t kPart = 1024;  // few enough to be added up in float32
    double sum = 0;
    for (std::size_t begin = 0; begin < vocabulary_; begin += kPart) {
      const std::size_t end = std::min(begin + kPart, vocabulary_);
      float part = 0;
#pragma omp simd reduction(+ : part)
      for (std::size_t i = begin; i < end; ++i) {
        values[i] = exponential(values[i] - largest);
        part += values[i];
      }
      sum += static_cast<double>(part);
    }
    losses_[token] = std::log(sum) + static_cast<double>(largest) - static_cast<double>(own);
    return static_cast<float>(sum);
  }

  // Replaces a token's logits by the gradient, weight * (probabilities - target probabilities).
  void write_gradient(std::size_t token, float weight, std::span<float> logits) {
    const float sum = measure(token, logits);
    const float factor = sum > 0 ? weight / sum : 0;
    float* values = logits.data();
#pragma omp simd
    for (std::size_t i = 0; i < vocabulary_; ++i) values[i] *= factor;
    if (sum > 0) values[targets_[token]] -= weight;
  }

  void store_sums() {
    const auto hits = std::ranges::count(hits_, 1);
    const auto targets = std::ranges::count_if(targets_, [](std::int32_t target) { return target >= 0; });
    const auto most = static_cast<double>(form_.targets());
    output()[0] = static_cast<float>(std::accumulate(losses_.begin(), losses_.end(), 0.0) / most);
    output()[1] = static_cast<float>(static_cast<double>(hits) / most);
    output()[2] = static_cast<float>(static_cast<double>(targets) / most);
  }

  Mode mode_;
  ReportFinal report_;
  bool bias_;
  WindowForm form_;
  std::size_t width_, tokens_, vocabulary_;
  std::vector<DnnlPass> products_;     // each block's logits
  std::vector<std::int32_t> targets_;  // the token to be predicted from each token; -1 if it is missing
  std::vector<double> losses_;         // each token's
  std::vector<std::uint8_t> hits_;     // whether the target has the largest logit
};

}  // namespace

std::unique_ptr<Op> plan(const LanguageModelHead& operation, const Specs& inputs, Mode mode, const Specs&) {
  return std::make_unique<LanguageModelHeadOp>(operation, inputs, mode);
}

}  // namespace annulus::cpu
