#include "kernels/cpu/plan/plain_passes_op.h"

namespace annulus::cpu {
namespace {

using Forward = dnnl::deconvolution_forward;
using BackwardData = dnnl::deconvolution_backward_data;
using BackwardWeights = dnnl::deconvolution_backward_weights;
using dnnl::memory;

constexpr auto kAlgorithm = dnnl::algorithm::deconvolution_direct;

memory::dim dim(std::size_t size) {
  return static_cast<memory::dim>(size);
}

// Weights {input channels, channels / groups, height, width} as oneDNN sees them: {groups,} output and input channels.
memory::desc weights_desc(const Shape& shape, std::size_t groups) {
  const auto o = dim(shape[1]), i = dim(shape[0] / groups), h = dim(shape[2]), w = dim(shape[3]);
  if (groups == 1) return {{o, i, h, w}, memory::data_type::f32, memory::dims{h * w, o * h * w, w, 1}};
  return {{dim(groups), o, i, h, w}, memory::data_type::f32, memory::dims{i * o * h * w, h * w, o * h * w, w, 1}};
}

class TransposedConvolutionOp : public PlainPassesOp {
 public:
  TransposedConvolutionOp(const TransposedConvolution& o, const TensorSpec& input, Mode mode)
      : PlainPassesOp({input}, output_shape(o, {input.shape})) {
    const auto declared = o.parameters({input.shape});
    declare(declared);
    const auto in = plain_layout(input.shape), out = plain_layout(shape());
    const auto weights = weights_desc(declared[0].shape, o.groups);
    const auto bias = o.bias ? plain_layout(declared[1].shape) : memory::desc();
    const memory::desc any_in = any_layout(input.shape), any_out = any_layout(shape());
    const memory::desc any_weights{weights.dims(), memory::data_type::f32, memory::format_tag::any};
    const memory::dims strides{dim(o.stride.height), dim(o.stride.width)};
    const memory::dims dilation{dim(o.dilation.height) - 1, dim(o.dilation.width) - 1};
    const memory::dims before{dim(o.padding.top), dim(o.padding.left)};
    // oneDNN derives the output's size from the padding at the end; extra pixels reduce it.
    const memory::dims after{dim(o.padding.bottom) - dim(o.extra.height), dim(o.padding.right) - dim(o.extra.width)};
    const auto kind = mode == Mode::training ? dnnl::prop_kind::forward_training : dnnl::prop_kind::forward_inference;
    const auto forward = plan_primitive<Forward>(
        {{kind, kAlgorithm, any_in, any_weights, bias, any_out, strides, dilation, before, after}}, attributes());
    const DnnlPass forward_pass{
        forward, {{DNNL_ARG_SRC, in}, {DNNL_ARG_DST, out, true}, {DNNL_ARG_WEIGHTS, weights}, {DNNL_ARG_BIAS, bias}}};
    DnnlPass backward_weights, backward_data;
    if (mode == Mode::training) {
      backward_weights = {plan_primitive<BackwardWeights>(
                              {{kAlgorithm, any_in, any_weights, bias, any_out, strides, dilation, before, after}},
                              attributes(), forward),
                          {{DNNL_ARG_SRC, in},
                           {DNNL_ARG_DIFF_DST, out},
                           {DNNL_ARG_DIFF_WEIGHTS, weights, true},
                           {DNNL_ARG_DIFF_BIAS, bias, true}}};
      backward_data = {
          plan_primitive<BackwardData>({{kAlgorithm, any_in, any_weights, any_out, strides, dilation, before, after}},
                                       attributes(), forward),
          {{DNNL_ARG_DIFF_SRC, in, true}, {DNNL_ARG_DIFF_DST, out}, {DNNL_ARG_WEIGHTS, weights}}};
    }
    use(forward_pass, backward_weights, backward_data);
  }
};

}  // namespace

std::unique_ptr<Op> plan(const TransposedConvolution& operation, const Specs& inputs, Mode mode, const Specs&) {
  return std::make_unique<TransposedConvolutionOp>(operation, inputs[0], mode);
}

}  // namespace annulus::cpu
