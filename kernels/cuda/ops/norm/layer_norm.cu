#include <algorithm>

#include "kernels/cuda/ops/norm/short_rows.h"
#include "kernels/cuda/ops/plan/operations.h"
#include "kernels/neighbour_fusion.h"

namespace annulus::cuda {
namespace {

// `statistics` is null in inference; `shift` if there is none.
template <class T>
__global__ void layer_norm(Predecessor previous, Rows rows, const T* input, const float* scale, const float* shift,
                           float size, float epsilon, bool centred, RowStatistics* statistics, T* output) {
  await(previous);
  rows.for_each([&](std::size_t row) {
    const std::size_t begin = row * rows.vectors;
    float sum = 0, squares = 0;
    if (centred)
      rows.for_each_vector<T>([&](unsigned vector, unsigned) {
        const Vector<T> values = load(input, begin + vector);
        for (unsigned k = 0; k < kLanes<T>; ++k) sum += values.at[k];
      });
    const float mean = centred ? warp_sum(sum) / size : 0;
    rows.for_each_vector<T>([&](unsigned vector, unsigned used) {
      const Vector<T> values = load(input, begin + vector);
      for (unsigned k = 0; k < used; ++k) squares += (values.at[k] - mean) * (values.at[k] - mean);
    });
    const float factor = 1 / sqrtf(warp_sum(squares) / size + epsilon);
    // Padding has scale 0 and shift 0.
    rows.for_each_vector<T>([&](unsigned vector, unsigned) {
      Vector<T> values = load(input, begin + vector);
      const Vector<T> by = load_floats<kLanes<T>>(scale + vector * kLanes<T>);
      Vector<T> more{};
      if (shift != nullptr) more = load_floats<kLanes<T>>(shift + vector * kLanes<T>);
      for (unsigned k = 0; k < kLanes<T>; ++k) values.at[k] = (values.at[k] - mean) * factor * by.at[k] + more.at[k];
      store(values, output, begin + vector);
    });
    if (statistics != nullptr && threadIdx.x == 0) statistics[row] = {mean, factor};
  });
}

// With n = (x - mean) factor and g = dy scale: dx = factor (g - mean(g) - n mean(g n)). If not centred, there is no
// mean(g).
template <class T>
__global__ void layer_norm_backward(Predecessor previous, Rows rows, const T* input, const float* scale, float size,
                                    bool centred, const RowStatistics* statistics, const T* output_gradient,
                                    InputGradient<T> to) {
  await(previous);
  rows.for_each([&](std::size_t row) {
    const std::size_t begin = row * rows.vectors;
    const auto [mean, factor] = statistics[row];
    float sum = 0, products = 0;
    // Calls body(vector, n, g, used).
    const auto for_each_pair = [&](const auto& body) {
      rows.for_each_vector<T>([&](unsigned vector, unsigned used) {
        Vector<T> n = load(input, begin + vector), g = load(output_gradient, begin + vector);
        const Vector<T> by = load_floats<kLanes<T>>(scale + vector * kLanes<T>);
        for (unsigned k = 0; k < kLanes<T>; ++k) {
          n.at[k] = (n.at[k] - mean) * factor;
          g.at[k] *= by.at[k];
        }
        body(vector, n, g, used);
      });
    };
    for_each_pair([&](unsigned, const Vector<T>& n, const Vector<T>& g, unsigned) {
      for (unsigned k = 0; k < kLanes<T>; ++k) {
        sum += g.at[k];
        products += g.at[k] * n.at[k];
      }
    });
    const float a = centred ? warp_sum(sum) / size : 0, b = warp_sum(products) / size;
    for_each_pair([&](unsigned vector, const Vector<T>& n, Vector<T> g, unsigned used) {
      for (unsigned k = 0; k < kLanes<T>; ++k) g.at[k] = k < used ? factor * (g.at[k] - a - n.at[k] * b) : 0;
      to.put(g, begin + vector);
    });
  });
}

// The parameters' gradients: dy n and dy, summed over all rows.
struct ParameterGradients {
  const float* unscale;
  float *scale, *shift;  // shift may be null

  __device__ void operator()(unsigned element, const Sums<2>& sum) const {
    scale[element] = *unscale * sum.of[0];
    if (shift != nullptr) shift[element] = *unscale * sum.of[1];
  }
};

template <class T>
__global__ void __launch_bounds__(Columns::kThreads, Columns::kBlocksEach)
    layer_norm_sums(Predecessor previous, Columns columns, const T* input, const T* output_gradient,
                    const RowStatistics* statistics, Sums<2>* partial, unsigned* counters, ParameterGradients to) {
  await(previous);
  constexpr unsigned kBatch = 2;
  Sums<2> sums[kLanes<T>]{};
  Packed<T> inputs[kBatch], gradients[kBatch];
  for_each_row<kBatch>(
      columns, false,
      [&](unsigned k, std::size_t index) {
        inputs[k] = fetch(input, index);
        gradients[k] = fetch(output_gradient, index);
      },
      [&](unsigned k, std::size_t index) {
        const auto [mean, factor] = statistics[index / columns.vectors];
        const Vector<T> x = unpacked<T>(inputs[k]), dy = unpacked<T>(gradients[k]);
        for (unsigned i = 0; i < kLanes<T>; ++i) {
          sums[i].of[0] += dy.at[i] * (x.at[i] - mean) * factor;
          sums[i].of[1] += dy.at[i];
        }
      });
  add_up_columns(columns, sums, partial, counters, to);
}

__global__ void add_up_blocks(Predecessor previous, Columns columns, const Sums<2>* partial, ParameterGradients to) {
  await(previous);
  add_up_stripes(columns, partial, to);
}

// forward() computes the residual addition before the norm, if rows are short.
template <class T>
class LayerNormOp : public Op, public NeighbourFusion {
 public:
  LayerNormOp(const LayerNorm& operation, const TensorSpec& input, Mode mode, Context& context)
      : context_(context),
        epsilon_(operation.epsilon),
        centred_(operation.centred),
        rows_(rows(operation, input)),
        columns_(rows_.rows, std::size_t{rows_.vectors} * kLanes<T>, kLanes<T>, context.multiprocessors) {
    info_.output = input;
    info_.inputs = {{.adds_to_gradient = true}};
    info_.backward_reads_output = false;
    const auto declared = operation.parameters({input.shape});
    for (const auto& parameter : declared)
      info_.parameters.push_back(channels_spec(parameter.shape, context.type(), parameter.shape.size() - 1));
    size_ = static_cast<float>(elements(declared[0].shape));
    if (mode == Mode::inference) return;
    statistics_ = allocate_device(rows_.rows * sizeof(RowStatistics));
    counters_ = allocate_device(columns_.counters() * sizeof(unsigned));
  }

  void fuse_neighbours(const Neighbours& neighbours) override {
    const bool follows_sum =
        neighbours.previous_forward != nullptr && std::holds_alternative<Add>(*neighbours.previous_forward);
    info_.fused.previous_forward = follows_sum && are_short(rows_);
  }

  void bind_neighbours(const NeighbourBindings& bindings) override { neighbours_ = bindings; }

  void bind(const Bindings& bindings) override {
    bindings_ = bindings;
    if (!bindings.output_gradient) return;
    differentiates_short_rows_ = InputGradient<T>(bindings, 0).wanted() && are_short(rows_);
    if (differentiates_short_rows_)
      columns_.stripes = std::min(blocks_for(rows_.rows, Rows::kWarps, context_.multiprocessors),
                                  static_cast<unsigned>(kShortRowBlocks * context_.multiprocessors));
    workspace_ = context_.workspace(columns_.partial_sums() * sizeof(Sums<2>));
  }

  void forward() override {
    NormInput<T> from{data<T>(bindings_.inputs[0])};
    if (info_.fused.previous_forward)
      from = {data<T>(neighbours_.previous_inputs[0]), data<T>(neighbours_.previous_inputs[1]),
              data<T>(neighbours_.previous_output)};
    const auto run = [&]<unsigned each>() {
      over_rows(norm_short_rows<T, each>, rows_, context_, from, rule(), statistics(), data<T>(bindings_.output));
    };
    if (are_short(rows_)) return for_short_rows(rows_, run);
    over_rows(layer_norm<T>, rows_, context_, data<T>(bindings_.inputs[0]), scale(), shift(bindings_.parameters), size_,
              epsilon_, centred_, statistics(), data<T>(bindings_.output));
  }

  void backward(float) override {
    const T *input = data<T>(bindings_.inputs[0]), *gradient = data<T>(bindings_.output_gradient);
    const ParameterGradients parameters{context_.unscale, data<float>(bindings_.parameter_gradients[0]),
                                        shift(bindings_.parameter_gradients)};
    if (differentiates_short_rows_) return differentiate_short(input, gradient, parameters);
    launch(layer_norm_sums<T>, columns_.grid(), columns_.block(), context_.lane.get(), columns_, input, gradient,
           statistics(), static_cast<Sums<2>*>(workspace_), data<unsigned>(counters_.view()), parameters);
    if (const InputGradient<T> to(bindings_, 0); to.wanted())
      over_rows(layer_norm_backward<T>, rows_, context_, input, scale(), size_, centred_, statistics(), gradient, to);
  }

 private:
  static Rows rows(const LayerNorm& operation, const TensorSpec& input) {
    const ChannelsLast& layout = channels_last(input);
    const Shape& shape = input.shape;
    const auto count = [](std::size_t size) { return static_cast<unsigned>(size); };
    std::size_t rows = 1;
    for (std::size_t i = 0; i < operation.axis; ++i) rows *= shape[i];
    return {rows, count(layout.count() / rows / kLanes<T>), count(shape.back()), count(layout.channels())};
  }

  // Blocks take the place of stripes.
  void differentiate_short(const T* input, const T* gradient, const ParameterGradients& parameters) const {
    auto* const partial = static_cast<Sums<2>*>(workspace_);
    for_short_rows(rows_, [&]<unsigned each>() {
      launch(differentiate_short_rows<T, each>, columns_.stripes, dim3(Rows::kWarp, Rows::kWarps), context_.lane.get(),
             rows_, input, rule(), statistics(), gradient, InputGradient<T>(bindings_, 0), partial);
    });
    launch(add_up_blocks, columns_.sum_grid(), columns_.sum_block(), context_.lane.get(), columns_, partial,
           parameters);
  }

  NormRule rule() const { return {scale(), shift(bindings_.parameters), size_, epsilon_, centred_}; }
  RowStatistics* statistics() const { return data<RowStatistics>(statistics_.view()); }
  const float* scale() const { return data<float>(bindings_.parameters[0]); }
  static float* shift(const std::vector<DeviceView>& of) { return of.size() > 1 ? data<float>(of[1]) : nullptr; }

  Context& context_;
  float epsilon_;
  bool centred_;
  float size_ = 0;  // elements in a row without padding
  Rows rows_;
  Columns columns_;
  Buffer statistics_, counters_;  // statistics for each row; both are empty in inference
  Bindings bindings_;
  NeighbourBindings neighbours_;
  bool differentiates_short_rows_ = false;
  void* workspace_ = nullptr;
};

}  // namespace

std::unique_ptr<Op> plan(const LayerNorm& operation, const Specs& inputs, Mode mode, Context& context) {
  return make_for<Op, LayerNormOp>(context.type(), operation, inputs[0], mode, context);
}

}  // namespace annulus::cuda
