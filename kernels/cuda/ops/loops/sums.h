#pragma once

#include "kernels/cuda/ops/loops/column_sums.h"
#include "kernels/cuda/ops/loops/context.h"
#include "kernels/cuda/ops/loops/input_gradient.h"
#include "kernels/cuda/ops/loops/lanes.h"
#include "kernels/cuda/ops/loops/over_vectors.h"

// Sums over some dimensions, in an order that depends only on the sizes. A term is a function of some tensors'
// elements: Vector<T> operator()(const Operands<.>& operands).
namespace annulus::cuda {

// Makes each vector of `to` a term.
template <class T, unsigned operands, class Term>
__global__ void put_terms(Predecessor previous, const __grid_constant__ Loop<operands> loop, Term term,
                          InputGradient<T> to, std::size_t vectors) {
  await(previous);
  for (std::size_t i = grid_thread(); i < vectors; i += grid_threads())
    to.put(term(loop.at(static_cast<unsigned>(i))), i);
}

// Adds up columns: each of `columns` is a vector of the sum, the rows are the terms. `kept` loops over the columns,
// `reduced` over the rows.
template <class T, unsigned operands, class Term>
__global__ void __launch_bounds__(Columns::kThreads, Columns::kBlocksEach)
    add_up_terms(Predecessor previous, const __grid_constant__ Loop<operands> kept,
                 const __grid_constant__ Loop<operands> reduced, Columns columns, Term term, Sums<1>* partial) {
  await(previous);
  const Operands<operands> column = kept.at(own_vector());
  Sums<1> sums[kLanes<T>]{};
  for_each_row<1>(
      columns, false, [](unsigned, std::size_t) {},
      [&](unsigned, std::size_t index) {
        Operands<operands> row = reduced.at(static_cast<unsigned>(index / columns.vectors));
        for (unsigned o = 0; o < operands; ++o) {
          row.of[o].offset += column.of[o].offset;
          row.of[o].stride = column.of[o].stride;
          row.of[o].used = column.of[o].used;
        }
        const Vector<T> values = term(row);
        for (unsigned k = 0; k < kLanes<T>; ++k) sums[k].of[0] += values.at[k];
      });
  store_block_sums(columns, sums, partial);
}

template <class T>
__global__ void finish_sums(Predecessor previous, Columns columns, const Sums<1>* partial, InputGradient<T> to) {
  await(previous);
  add_up_stripes(columns, partial, [&](unsigned element, const Sums<1>& sum) {
    to.values[element] = T(sum.of[0] + (to.accumulate ? static_cast<float>(to.values[element]) : 0));
  });
}

// Sums the terms over the dimensions of `shape` that are 1 or missing in a tensor of values.
template <class T, unsigned operands>
class SumOver {
 public:
  // `strides`: each operand's, for each dimension of `shape`.
  SumOver(const Shape& shape, const TensorSpec& sum, const std::array<Strides, operands>& strides, Context& context)
      : context_(context) {
    const std::size_t missing = shape.size() - sum.shape.size();
    std::array<Strides, operands> kept;
    for (unsigned o = 0; o < operands; ++o)
      kept[o].assign(strides[o].begin() + static_cast<std::ptrdiff_t>(missing), strides[o].end());
    kept_ = loop_over<operands>(channels_last(sum), kept, kLanes<T>);
    for (std::size_t d = shape.size(); d-- > 0;) {
      if (d >= missing && sum.shape[d - missing] == shape[d]) continue;
      std::array<std::int64_t, operands> all;
      for (unsigned o = 0; o < operands; ++o) all[o] = strides[o][d];
      reduced_.add_outside(shape[d], all);
    }
    expect_countable(reduced_.rows());
  }

  std::size_t workspace_bytes() const { return direct() ? 0 : columns().partial_sums() * sizeof(Sums<1>); }

  template <class Term>
  void run(const Term& term, const InputGradient<T>& to, void* workspace) const {
    if (direct()) return over_vectors(put_terms<T, operands, Term>, kept_.vectors(), context_, kept_, term, to);
    auto* partial = static_cast<Sums<1>*>(workspace);
    launch(add_up_terms<T, operands, Term>, columns().grid(), columns().block(), context_.lane.get(), kept_, reduced_,
           columns(), term, partial);
    launch(finish_sums<T>, columns().sum_grid(), columns().sum_block(), context_.lane.get(), columns(), partial, to);
  }

 private:
  bool direct() const { return reduced_.rows() == 1; }
  Columns columns() const {
    return Columns(reduced_.rows(), kept_.vectors() * kLanes<T>, kLanes<T>, context_.multiprocessors);
  }

  Context& context_;
  Loop<operands> kept_, reduced_;
};

}  // namespace annulus::cuda
