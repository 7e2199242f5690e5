#include <optional>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/cuda/ops/plan/move.h"
#include "kernels/cuda/ops/plan/operations.h"

namespace annulus::cuda {
namespace {

template <class O, class... Others>
constexpr bool kOneOf = (std::is_same_v<O, Others> || ...);

// Returns the input dimension that an operation needs as channels; none if any will do.
template <class O>
std::optional<std::size_t> needed_channels([[maybe_unused]] const O& operation, const Specs& inputs,
                                           std::size_t number) {
  const Shape& shape = inputs[number].shape;
  if constexpr (kOneOf<O, Linear, MatrixProduct, Attention, CachedAttention, Maximum, Softmax, LayerNorm,
                       PositionEmbedding, SoftmaxCrossEntropy, BinaryCrossEntropy, MultiLabelCrossEntropy,
                       MeanSquaredError, LanguageModelHead>)
    return shape.size() - 1;
  if constexpr (kOneOf<O, Convolution, TransposedConvolution, MaxPool, AveragePool, AdaptiveAveragePool, BatchNorm,
                       GroupNorm, LocalResponseNorm, PRelu, Resize>)
    return 1;
  if constexpr (kOneOf<O, ComputedWeights>)
    if (number == 0)
      return std::visit([&](const auto& layer) { return needed_channels(layer, inputs, 0); }, operation.layer);
  if constexpr (kOneOf<O, Dense>) return channel_axis(shape);
  if constexpr (kOneOf<O, Add, Concat>) return channels_last(inputs[0]).axis();
  return {};
}

// Moves inputs to the layouts that an operation needs, and gradients back. The scratch holds moved inputs.
class AdaptedOp : public Op {
 public:
  AdaptedOp(const Specs& have, const Specs& need, std::unique_ptr<Op> op, Context& context) : op_(std::move(op)) {
    info_ = op_->info();
    for (std::size_t i = 0; i < have.size(); ++i) {
      if (have[i].layout->name() == need[i].layout->name()) continue;
      if (info_.inputs.empty()) info_.inputs.assign(have.size(), {});
      info_.inputs[i].output_may_overwrite = info_.inputs[i].gradient_may_overwrite = false;
      moved_.push_back(
          {i, need[i].layout->bytes(), to_layout(have[i], need[i], context), to_layout(need[i], have[i], context)});
      info_.inputs[i].adds_to_gradient = true;
      info_.scratch_bytes += 2 * moved_.back().bytes;
    }
  }

  void sum_over_ranks(const SumOverRanks& sum) override { op_->sum_over_ranks(sum); }

  void bind(const Bindings& bindings) override {
    bindings_ = adapted_ = bindings;
    std::size_t at = 0;
    const auto take = [&](std::size_t bytes) { return bindings.scratch.slice(std::exchange(at, at + bytes), bytes); };
    for (const Input& moved : moved_) {
      adapted_.inputs[moved.number] = take(moved.bytes);
      DeviceView gradient = take(moved.bytes);
      if (moved.number >= bindings.input_gradients.size() || !bindings.input_gradients[moved.number]) continue;
      adapted_.input_gradients[moved.number] = gradient;
      if (!bindings.accumulate.empty()) adapted_.accumulate[moved.number] = false;
    }
    adapted_.scratch = bindings.scratch.slice(at, bindings.scratch.bytes - at);
    op_->bind(adapted_);
  }

  void forward() override {
    for (const Input& moved : moved_) load(moved);
    op_->forward();
  }

  void backward(float sample_weight) override {
    for (const Input& moved : moved_)
      if (info_.input(moved.number).backward_reads) load(moved);
    op_->backward(sample_weight);
    for (const Input& moved : moved_)
      if (const std::size_t i = moved.number; adapted_.input_gradients.size() > i && adapted_.input_gradients[i])
        moved.back.run(adapted_.input_gradients[i], bindings_.input_gradients[i], bindings_.accumulates(i));
  }

 private:
  struct Input {
    std::size_t number, bytes;
    Move there, back;
  };

  void load(const Input& moved) const {
    moved.there.run(bindings_.inputs[moved.number], adapted_.inputs[moved.number], false);
  }

  std::unique_ptr<Op> op_;
  std::vector<Input> moved_;
  Bindings bindings_, adapted_;
};

template <class O>
std::unique_ptr<Op> plan_adapted(const O& operation, const Specs& inputs, Mode mode, Context& context) {
  if constexpr (kOneOf<O, CachedAttention>)
    if (mode == Mode::training) fail("cached attention cannot be trained");
  Specs needed = inputs;
  bool fits = true;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (dynamic_cast<const ChannelsLast*>(inputs[i].layout.get()) == nullptr) continue;  // pixels, labels, keys
    const auto channels = needed_channels(operation, inputs, i);
    if (!channels || *channels == channels_last(inputs[i]).axis()) continue;
    needed[i] = value_spec(inputs[i].shape, inputs[i].type, *channels);
    fits = false;
  }
  auto op = plan(operation, needed, mode, context);
  return fits ? std::move(op) : std::make_unique<AdaptedOp>(inputs, needed, std::move(op), context);
}

}  // namespace

std::unique_ptr<Op> plan_any(const Operation& operation, const Specs& inputs, Mode mode, Context& context) {
  return std::visit([&](const auto& o) { return plan_adapted(o, inputs, mode, context); }, operation);
}

}  // namespace annulus::cuda
