#include "kernels/cuda/ops/loops/chunks.h"
#include "kernels/cuda/ops/loops/input_gradient.h"
#include "kernels/cuda/ops/loops/over_vectors.h"
#include "kernels/cuda/ops/loops/strided_loops.h"
#include "kernels/cuda/ops/plan/operations.h"

namespace annulus::cuda {
namespace {

// A tensor in memory, along a dimension: {outer, extent, inner}.
struct Extents {
  unsigned extent;
  std::size_t inner;
};

// Output element i along the dimension sums the input's elements list[begin[i]] to before list[begin[i + 1]]. A gather
// has a single element in each list; the backward pass lists the elements that read from i. `channels`: the dimension
// is the channels', so each lane has a separate list.
template <class T, bool channels>
__global__ void add_up_lists(Predecessor previous, Extents from_size, Extents to_size, unsigned outputs,
                             const std::uint32_t* begin, const std::uint32_t* list, const T* from, InputGradient<T> to,
                             std::size_t vectors) {
  await(previous);
  for (std::size_t i = grid_thread(); i < vectors; i += grid_threads()) {
    Vector<T> sum{};
    if constexpr (channels) {
      const std::size_t in_row = to_size.extent / kLanes<T>, row = i / in_row;
      const auto first = static_cast<unsigned>(i % in_row) * kLanes<T>;
      for (unsigned k = 0; k < kLanes<T> && first + k < outputs; ++k)
        for (std::uint32_t p = begin[first + k]; p < begin[first + k + 1]; ++p)
          sum.at[k] += static_cast<float>(from[row * from_size.extent + list[p]]);
    } else {
      const std::size_t outer = i / to_size.inner / to_size.extent;
      const auto at = static_cast<unsigned>(i / to_size.inner % to_size.extent);
      for (std::uint32_t p = begin[at]; p < begin[at + 1]; ++p) {
        const Vector<T> more = load(from, (outer * from_size.extent + list[p]) * from_size.inner + i % from_size.inner);
        for (unsigned k = 0; k < kLanes<T>; ++k) sum.at[k] += more.at[k];
      }
    }
    to.put(sum, i);
  }
}

// Lists, in device memory, of the elements that are added up for each element of a dimension.
struct Lists {
  unsigned outputs;
  Buffer begin, list;

  explicit Lists(const std::vector<std::vector<std::uint32_t>>& lists) : outputs(static_cast<unsigned>(lists.size())) {
    std::vector<std::uint32_t> begins{0}, all;
    for (const auto& each : lists) {
      all.insert(all.end(), each.begin(), each.end());
      begins.push_back(static_cast<std::uint32_t>(all.size()));
    }
    begin = on_device(begins);
    list = on_device(all);
  }
};

template <class T>
class GatherOp : public Op {
 public:
  GatherOp(const Gather& operation, const TensorSpec& input, Context& context)
      : context_(context),
        channels_(operation.axis == channels_last(input).axis()),
        forward_(read(operation)),
        back_(readers(operation, input.shape[operation.axis])) {
    info_.output = value_spec(operation.output_shape({input.shape}), context.type(), channels_last(input).axis());
    info_.inputs = {{.backward_reads = false, .adds_to_gradient = true}};
    info_.backward_reads_output = false;
    input_size_ = extents(input, operation.axis);
    output_size_ = extents(info_.output, operation.axis);
    input_vectors_ = vectors_of(channels_last(input));
    output_vectors_ = vectors_of(channels_last(info_.output));
  }

  void bind(const Bindings& bindings) override { bindings_ = bindings; }

  void forward() override {
    run(forward_, input_size_, output_size_, bindings_.inputs[0], InputGradient<T>(bindings_.output), output_vectors_);
  }

  void backward(float) override {
    if (const InputGradient<T> to(bindings_, 0); to.wanted())
      run(back_, output_size_, input_size_, bindings_.output_gradient, to, input_vectors_);
  }

 private:
  using ListsOf = std::vector<std::vector<std::uint32_t>>;

  static ListsOf read(const Gather& operation) {
    ListsOf lists;
    for (const std::size_t index : operation.indices) lists.push_back({static_cast<std::uint32_t>(index)});
    return lists;
  }
  static ListsOf readers(const Gather& operation, std::size_t extent) {
    ListsOf lists(extent);
    for (std::size_t i = 0; i < operation.indices.size(); ++i)
      lists[operation.indices[i]].push_back(static_cast<std::uint32_t>(i));
    return lists;
  }

  // Along the channels, the extent includes the padding; else the inner elements are counted in vectors.
  static Extents extents(const TensorSpec& tensor, std::size_t axis) {
    const ChannelsLast& layout = channels_last(tensor);
    if (axis == layout.axis()) return {static_cast<unsigned>(layout.channels()), 1};
    return {static_cast<unsigned>(tensor.shape[axis]), layout.strides()[axis] / kLanes<T>};
  }

  void run(const Lists& lists, const Extents& from_size, const Extents& to_size, DeviceView from,
           const InputGradient<T>& to, std::size_t vectors) const {
    over_vectors(channels_ ? add_up_lists<T, true> : add_up_lists<T, false>, vectors, context_, from_size, to_size,
                 lists.outputs, data<std::uint32_t>(lists.begin.view()), data<std::uint32_t>(lists.list.view()),
                 data<T>(from), to);
  }

  Context& context_;
  bool channels_;
  Lists forward_, back_;
  Extents input_size_, output_size_;
  std::size_t input_vectors_, output_vectors_;
  Bindings bindings_;
};

}  // namespace

std::unique_ptr<Op> plan(const Gather& operation, const Specs& inputs, Mode, Context& context) {
  return make_for<Op, GatherOp>(context.type(), operation, inputs[0], context);
}

}  // namespace annulus::cuda
