#include <algorithm>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/cuda/ops/convolution/grouped_convolution.h"
#include "kernels/cuda/ops/convolution/image_blocks.h"
#include "kernels/cuda/ops/loops/bias.h"
#include "kernels/cuda/ops/loops/elementwise.h"
#include "kernels/cuda/ops/plan/fusible_norm.h"
#include "kernels/cuda/ops/plan/operations.h"
#include "kernels/cuda/runtime/layout.h"
#include "kernels/neighbour_fusion.h"

namespace annulus::cuda {
namespace {

// Describes a convolution, or a transposed convolution, which runs the passes of a convolution from output to input:
// that convolution's backward data is the layer's forward.
struct Layer {
  ConvolutionProblem problem;             // with any pass
  std::size_t channels, filters, groups;  // the problem's, without padding
  bool bias, relu, transposed;
  Shape output;
  std::vector<ParameterDeclaration> parameters;
};

class ConvolutionOp : public Op, public NeighbourFusion {
 public:
  ConvolutionOp(const Layer& layer, Mode mode, Context& context)
      : layer_(layer),
        mode_(mode),
        context_(context),
        ending_(layer.bias, layer.relu, layer.output[0] * layer.output[2] * layer.output[3],
                layer.transposed ? layer.problem.channels : layer.problem.filters, context) {
    info_.output = value_spec(layer.output, context.type());
    info_.inputs = {{.adds_to_gradient = !layer.transposed}};
    info_.backward_reads_output = layer.relu;
    info_.skips_parameter_gradients = true;
    const Shape& weights = layer.parameters[0].shape;
    info_.parameters = {layer.groups == 1 ? weights_spec(weights, context.type())
                                          : channels_spec(weights, context.type(), 0)};
    if (layer.bias) info_.parameters.push_back(channels_spec(layer.parameters[1].shape, context.type()));
    forward_ = planned_forward();
    if (mode == Mode::inference) return;
    if (layer.groups > 1) passes_.backward_weights = BackwardWeights::wide;
    backward_weights_ = planned(passes_.backward_weights);
  }

  void fuse_neighbours(const Neighbours& neighbours) override {
    if (mode_ == Mode::inference || context_.type() == DataType::f32 || layer_.groups > 1) return;
    auto* before = norm(neighbours.previous);
    auto* after = norm(neighbours.next);
    const NormsBeside norms = norms_beside(before, neighbours.shares_input, after);
    if (norms == NormsBeside{} && !layer_.problem.is_product()) return;
    passes_ = planned_or_plain(context_.convolutions->choose_passes(layer_.problem, norms));
    forward_ = planned_forward();
    if (passes_.forward.statistics) sums_ = after->take_statistics();
    const bool computes_input = passes_.forward.input != Forward::stored;
    const bool sums_gradient = passes_.backward_data != BackwardData::written;
    if (sums_gradient) norm_ = before->take_gradient_sums();
    backward_weights_ = planned(passes_.backward_weights);
    if (!passes_.own_products) {
      if (computes_input) factors_ = before->leave_output();
    } else if (computes_input || sums_gradient) {
      if (computes_input) before->leave_stored_output();
      factors_ = before->stored_output_factors();
    }
    info_.fused.previous = previous_passes();
  }

  void bind_neighbours(const NeighbourBindings& bindings) override { neighbours_ = bindings; }

  void bind(const Bindings& bindings) override {
    bindings_ = bindings;
    if (info_.fused.replaces_output()) bindings_.inputs[0] = neighbours_.previous_inputs[0];
    weights_ = context_.type() == DataType::f32 ? bindings.parameters[0] : bindings.copies[0];
    std::size_t bytes = forward_->workspace_bytes();
    if (mode_ == Mode::training) {
      bytes =
          std::max({bytes, ending_.workspace_bytes(), weight_scratch_bytes() + backward_weights_->workspace_bytes()});
      // Planned only now, because the bindings determine whether it accumulates.
      if (bindings.input_gradients[0])
        backward_data_ = layer_.transposed         ? planned(passes_.forward)
                         : bindings.accumulates(0) ? planned(BackwardData::added)
                                                   : planned(passes_.backward_data);
      if (backward_data_) bytes = std::max(bytes, backward_data_->workspace_bytes());
    }
    workspace_ = static_cast<std::byte*>(context_.workspace(bytes));
  }

  void forward() override {
    run(*forward_, bindings_.inputs[0].address, weights_.address, bindings_.output.address, workspace_);
    ending_.forward(bindings_.output.address, bias(bindings_.parameters));
  }

  void backward(float) override {
    std::byte* gradient = bindings_.output_gradient.address;
    ending_.backward(bindings_.output.address, gradient, bias(bindings_.parameter_gradients), workspace_);
    if (bindings_.parameter_gradients[0]) backward_weights(gradient);
    if (backward_data_)
      run(*backward_data_, bindings_.input_gradients[0].address, weights_.address, gradient, workspace_);
  }

 private:
  FusibleNorm* norm(Op* neighbour) const { return layer_.transposed ? nullptr : dynamic_cast<FusibleNorm*>(neighbour); }

  NormsBeside norms_beside(const FusibleNorm* before, bool shared, const FusibleNorm* after) const {
    using Kind = FusibleNorm::Kind;
    const auto is_before = [&](Kind kind) { return before != nullptr && before->kind() == kind; };
    const bool bare = !layer_.bias && !layer_.relu;
    return {.before = !shared && is_before(Kind::rectified)  ? NormsBeside::rectified
                      : shared && is_before(Kind::block_end) ? NormsBeside::block_end
                                                             : NormsBeside::none,
            .after = bare && after != nullptr && after->needs_statistics()};
  }

  // Returns `chosen`, or passes that do nothing besides if there is no plan for a chosen pass.
  ConvolutionPasses planned_or_plain(const ConvolutionPasses& chosen) {
    layer_.problem.own_products = chosen.own_products;
    try {
      planned(chosen.forward);
      planned(chosen.backward_data);
      planned(chosen.backward_weights);
      return chosen;
    } catch (const Error&) {
      layer_.problem.own_products = false;
      return {};
    }
  }

  FusedPasses::Previous previous_passes() const {
    using enum FusedPasses::Previous;
    if (passes_.forward.input == Forward::normalized) return passes_.own_products ? part : output;
    if (passes_.forward.input == Forward::block_end) return shared_output;
    if (passes_.backward_data == BackwardData::summed_elsewhere) return shared_part;
    return passes_.backward_data == BackwardData::summed ? part : none;
  }

  std::unique_ptr<ConvolutionPlan> planned_forward() {
    return layer_.transposed ? planned(BackwardData::written) : planned(passes_.forward);
  }

  std::unique_ptr<ConvolutionPlan> planned(const ConvolutionPass& pass) {
    const ConvolutionProblem one = layer_.problem.with(pass);
    if (one.is_own()) return plan_own_product(one);
    if (layer_.groups == 1) return context_.convolutions->plan(one);
    return plan_grouped({one, layer_.channels, layer_.filters, layer_.groups}, context_.multiprocessors);
  }

  // The operands are the layer's: values or gradients.
  void run(ConvolutionPlan& plan, std::byte* input, std::byte* weights, std::byte* output, std::byte* workspace) const {
    if (layer_.transposed) std::swap(input, output);
    plan.run({.input = input,
              .weights = weights,
              .output = output,
              .scale = factors_.scale,
              .shift = factors_.shift,
              .norm_input = info_.fused.reads_previous_inputs() ? neighbours_.previous_inputs[0].address : nullptr,
              .addend = passes_.forward.input == Forward::block_end ? neighbours_.previous_inputs[1].address : nullptr,
              .norm_output = bindings_.inputs[0].address,
              .gradient_of_others = neighbours_.gradient_of_others.address,
              .sums = sums_.values,
              .squares = sums_.squares,
              .norm = norm_,
              .factor = context_.unscale},
             workspace, context_.lane.get());
  }

  float* bias(const std::vector<DeviceView>& of) const {
    return layer_.bias ? reinterpret_cast<float*>(of[1].address) : nullptr;
  }

  // Returns the size of the weights' 16-bit gradient, which lies first in the workspace before it is widened; 0 if the
  // plan writes float32 directly to the arena.
  std::size_t weight_scratch_bytes() const {
    if (context_.type() == DataType::f32 || passes_.backward_weights == BackwardWeights::wide) return 0;
    constexpr std::size_t kAlignment = 256;  // for the plan's workspace after it
    const std::size_t bytes = channels_last(info_.parameters[0]).count() * size_of(context_.type());
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  void backward_weights(std::byte* output_gradient) {
    const DeviceView gradient = bindings_.parameter_gradients[0].slice(0, info_.parameters[0].layout->bytes());
    const std::size_t scratch = weight_scratch_bytes();
    run(*backward_weights_, bindings_.inputs[0].address, scratch > 0 ? workspace_ : gradient.address, output_gradient,
        workspace_ + scratch);
    if (scratch > 0) widen(workspace_, gradient, context_.unscale, context_);
  }

  Layer layer_;
  Mode mode_;
  Context& context_;
  BiasRelu ending_;
  ConvolutionPasses passes_;
  std::unique_ptr<ConvolutionPlan> forward_, backward_weights_, backward_data_;  // backward_data_ is null if not needed
  FusibleNorm::ChannelFactors factors_{};                                        // the input's, if plans compute it
  FusibleNorm::ChannelSums sums_{};  // the output's, if the forward plan computes them
  NormGradient norm_{};              // the input's, if the backward_data plan sums the gradient
  Bindings bindings_;
  NeighbourBindings neighbours_;
  DeviceView weights_;  // in the value type
  std::byte* workspace_ = nullptr;
};

// Returns the problem for a convolution from images in this shape.
template <class Operation>
ConvolutionProblem problem(const Operation& o, const Shape& images, std::size_t filters, const Context& context) {
  const auto padded = [block = channel_block(context.type())](std::size_t count) {
    return (count + block - 1) / block * block;
  };
  return {.pass = Forward{},
          .precision = context.precision,
          .batch = images[0],
          .channels = padded(images[1]),
          .height = images[2],
          .width = images[3],
          .filters = padded(filters),
          .kernel = o.kernel,
          .stride = o.stride,
          .padding = o.padding,
          .dilation = o.dilation};
}

}  // namespace

std::unique_ptr<Op> plan_over_pixels(const Convolution& operation, const TensorSpec& images, Mode mode,
                                     Context& context) {
  const Shape &in = images.shape, out = operation.output_shape({in});
  const Layer layer{.problem = problem(operation, in, out[1], context),
                    .channels = in[1],
                    .filters = out[1],
                    .groups = operation.groups,
                    .bias = operation.bias,
                    .relu = operation.relu,
                    .transposed = false,
                    .output = out,
                    .parameters = operation.parameters({in})};
  return std::make_unique<ConvolutionOp>(layer, mode, context);
}

std::unique_ptr<Op> plan(const Convolution& operation, const Specs& inputs, Mode mode, Context& context) {
  auto of_images = operation.input_gradient ? nullptr : plan_image_reader(operation, inputs[0], mode, context);
  return of_images ? std::move(of_images) : plan_over_pixels(operation, inputs[0], mode, context);
}

std::unique_ptr<Op> plan(const TransposedConvolution& operation, const Specs& inputs, Mode mode, Context& context) {
  const Shape &in = inputs[0].shape, out = operation.output_shape({in});
  const Layer layer{.problem = problem(operation, out, in[1], context),
                    .channels = out[1],
                    .filters = in[1],
                    .groups = operation.groups,
                    .bias = operation.bias,
                    .relu = false,
                    .transposed = true,
                    .output = out,
                    .parameters = operation.parameters({in})};
  expect_extra(operation.extra, operation.stride);
  return std::make_unique<ConvolutionOp>(layer, mode, context);
}

}  // namespace annulus::cuda
