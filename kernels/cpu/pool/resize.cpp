#include <algorithm>

#include "kernels/cpu/plan/plain_op.h"
#include "kernels/resize_taps.h"

namespace annulus::cpu {
namespace {

class ResizeOp : public PlainOp {
 public:
  ResizeOp(const Resize& operation, const TensorSpec& input)
      : PlainOp({input}, output_shape(operation, {input.shape})),
        rows_(row_taps(operation, input.shape)),
        columns_(column_taps(operation, input.shape)),
        planes_(input.shape[0] * input.shape[1]) {
    info_.inputs = {{.backward_reads = false}};
  }

 private:
  std::size_t in_width() const { return shape(0)[3]; }
  std::size_t in_area() const { return shape(0)[2] * shape(0)[3]; }
  std::size_t out_area() const { return rows_.size() * columns_.size(); }

  void compute() override {
#pragma omp parallel for schedule(static)
    for (std::size_t plane = 0; plane < planes_; ++plane) {
      const float* in = input(0) + plane * in_area();
      float* to = output() + plane * out_area();
      for (const ResizeTap& row : rows_) {
        const float *a = in + row.first * in_width(), *b = in + row.second * in_width();
        for (const ResizeTap& column : columns_) {
          const float above = column.first_weight * a[column.first] + column.second_weight * a[column.second];
          const float below = column.first_weight * b[column.first] + column.second_weight * b[column.second];
          *to++ = row.first_weight * above + row.second_weight * below;
        }
      }
    }
  }

  void differentiate() override {
#pragma omp parallel for schedule(static)
    for (std::size_t plane = 0; plane < planes_; ++plane) {
      const float* gradient = output_gradient() + plane * out_area();
      float* to = input_gradient(0) + plane * in_area();
      std::fill_n(to, in_area(), 0.0f);
      for (const ResizeTap& row : rows_) {
        float *a = to + row.first * in_width(), *b = to + row.second * in_width();
        for (const ResizeTap& column : columns_) {
          const float above = row.first_weight * *gradient, below = row.second_weight * *gradient++;
          a[column.first] += column.first_weight * above;
          a[column.second] += column.second_weight * above;
          b[column.first] += column.first_weight * below;
          b[column.second] += column.second_weight * below;
        }
      }
    }
  }

  std::vector<ResizeTap> rows_, columns_;
  std::size_t planes_;
};

}  // namespace

std::unique_ptr<Op> plan(const Resize& operation, const Specs& inputs, Mode, const Specs&) {
  return std::make_unique<ResizeOp>(operation, inputs[0]);
}

}  // namespace annulus::cpu
