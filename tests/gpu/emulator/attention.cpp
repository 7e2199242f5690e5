#include "kernels/cuda/vendor/attention_plan.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cuda/runtime/layout.h"
#include "kernels/cuda/runtime/runtime.h"
#include "tests/gpu/emulator/device_memory.h"
#include "tests/gpu/emulator/emulated_stream.h"
#include "tests/gpu/emulator/values.h"

// Replaces cuDNN's attention by a direct one.

namespace annulus::cuda {
namespace {

using Pass = AttentionProblem::Pass;

constexpr std::size_t kWorkspaceBytes = 4096;  // not needed, but overwritten, to detect users of stale data

std::size_t tokens(const AttentionProblem& p) {
  return p.batch * p.length;
}

// Calls body(offset of a head in the inputs of its sample's first token, offset in the outputs, number of its first
// query among all heads' queries) for each head of each sample.
template <class Body>
void for_each_head(const AttentionProblem& p, const Body& body) {
  for (std::size_t n = 0; n < p.batch; ++n)
    for (std::size_t head = 0; head < p.heads; ++head)
      body(n * p.length * p.input_row + head * p.each, n * p.length * p.output_row + head * p.each,
           (n * p.heads + head) * p.length);
}

float dot(const float* a, const float* b, std::size_t count) {
  float sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

void add(float* to, const float* from, float factor, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) to[i] += factor * from[i];
}

// The scores of the keys that a query sees.
std::vector<float> scores(const AttentionProblem& p, const float* queries, std::size_t query) {
  const float scale = 1 / std::sqrt(static_cast<float>(p.each));
  const float* keys = queries + p.heads * p.each;
  std::vector<float> all;
  for (std::size_t key = 0; key < (p.causal ? query + 1 : p.length); ++key)
    all.push_back(scale * dot(queries + query * p.input_row, keys + key * p.input_row, p.each));
  return all;
}

void forward(const AttentionProblem& p, const AttentionOperands& o) {
  const DataType type = value_type(p.precision);
  const std::vector<float> input = emulated::load(o.input, tokens(p) * p.input_row, type);
  std::vector<float> output = emulated::load(o.output, tokens(p) * p.output_row, type);
  for_each_head(p, [&](std::size_t in, std::size_t out, std::size_t first) {
    const float *queries = input.data() + in, *values = queries + 2 * p.heads * p.each;
    for (std::size_t query = 0; query < p.length; ++query) {
      const std::vector<float> all = scores(p, queries, query);
      const float most = std::ranges::max(all);
      float total = 0;
      for (const float score : all) total += std::exp(score - most);
      float* to = output.data() + out + query * p.output_row;
      std::fill_n(to, p.each, 0.0f);
      for (std::size_t key = 0; key < all.size(); ++key)
        add(to, values + key * p.input_row, std::exp(all[key] - most) / total, p.each);
      if (p.pass == Pass::forward) o.sums[first + query] = most + std::log(total);
    }
  });
  emulated::store(output, o.output, type);
}

void backward(const AttentionProblem& p, const AttentionOperands& o) {
  const DataType type = value_type(p.precision);
  const std::vector<float> input = emulated::load(o.input, tokens(p) * p.input_row, type);
  const std::vector<float> output = emulated::load(o.output, tokens(p) * p.output_row, type);
  const std::vector<float> output_gradient = emulated::load(o.output_gradient, output.size(), type);
  std::vector<float> gradient = emulated::load(o.input_gradient, input.size(), type);
  const std::size_t width = p.heads * p.each;
  const float scale = 1 / std::sqrt(static_cast<float>(p.each));
  for_each_head(p, [&](std::size_t in, std::size_t out, std::size_t first) {
    const float* const from = input.data() + in;
    float* const to = gradient.data() + in;
    for (std::size_t token = 0; token < p.length; ++token)
      for (std::size_t part = 0; part < 3; ++part) std::fill_n(to + token * p.input_row + part * width, p.each, 0.0f);
    for (std::size_t query = 0; query < p.length; ++query) {
      const float* of_output = output_gradient.data() + out + query * p.output_row;
      const float product = dot(output.data() + out + query * p.output_row, of_output, p.each);
      o.products[first + query] = product;
      const std::vector<float> all = scores(p, from, query);
      for (std::size_t key = 0; key < all.size(); ++key) {
        const std::size_t at_query = query * p.input_row, at_key = key * p.input_row + width, at_value = at_key + width;
        const float weight = std::exp(all[key] - o.sums[first + query]);
        const float slope = scale * weight * (dot(of_output, from + at_value, p.each) - product);
        add(to + at_query, from + at_key, slope, p.each);
        add(to + at_key, from + at_query, slope, p.each);
        add(to + at_value, of_output, weight, p.each);
      }
    }
  });
  emulated::store(gradient, o.input_gradient, type);
}

class EmulatedAttention final : public AttentionPlan {
 public:
  explicit EmulatedAttention(const AttentionProblem& problem) : problem_(problem) {}

  std::size_t workspace_bytes() const override { return kWorkspaceBytes; }

  void run(const AttentionOperands& operands, void* workspace, cudaStream_t stream) override {
    const AttentionProblem& p = problem_;
    const std::size_t bytes = size_of(value_type(p.precision)), queries = tokens(p) * p.heads;
    emulated::check_operand("attention's input", operands.input, tokens(p) * p.input_row, bytes);
    emulated::check_operand("attention's output", operands.output, tokens(p) * p.output_row, bytes);
    emulated::check_operand("attention's workspace", workspace, kWorkspaceBytes, 1);
    if (p.pass != Pass::inference) emulated::check_operand("attention's sums", operands.sums, queries, sizeof(float));
    if (p.pass == Pass::backward) {
      emulated::check_operand("attention's products", operands.products, queries, sizeof(float));
      emulated::check_operand("attention's output gradient", operands.output_gradient, tokens(p) * p.output_row, bytes);
      emulated::check_operand("attention's input gradient", operands.input_gradient, tokens(p) * p.input_row, bytes);
    }
    check(emulated::enqueue(stream, [=, o = emulated::accessible(operands)] {
      std::memset(emulated::accessible(workspace), 0xff, kWorkspaceBytes);
      p.pass == Pass::backward ? backward(p, o) : forward(p, o);
    }));
  }

 private:
  AttentionProblem problem_;
};

class EmulatedAttentions final : public AttentionPlanner {
 public:
  // Like cuDNN's, only for 16 bits and aligned heads.
  std::unique_ptr<AttentionPlan> plan(const AttentionProblem& p) override {
    if (value_type(p.precision) == DataType::f32 || p.each % channel_block(value_type(p.precision)) != 0)
      return nullptr;
    return std::make_unique<EmulatedAttention>(p);
  }
};

}  // namespace

std::unique_ptr<AttentionPlanner> make_attention_planner(const Tuning&, std::shared_ptr<TuningBudget>) {
  return std::make_unique<EmulatedAttentions>();
}

}  // namespace annulus::cuda
