#include "kernels/base/error.h"
#include "src/onnx/fold.h"
#include "src/onnx/linear_map.h"
#include "src/onnx/masks.h"
#include "src/onnx/reader.h"

namespace annulus {
namespace {

// Element i sums the elements up to it: a product with a triangle of ones.
void read_cumulative_sum(NodeReader& n) {
  const Value x = n.value(0);
  const auto wanted = n.wholes(1);
  if (wanted.size() != 1) fail("its axis must be one number");
  const std::size_t axis = checked_axis(wanted[0], n.shape(x).size()), extent = n.shape(x)[axis];
  n.expect_not_batch(x, axis);
  if (extent > kMostConstantElements / extent) fail("its {} elements are too many", extent);
  const bool reverse = n.attributes.whole("reverse", 0) != 0, exclusive = n.attributes.whole("exclusive", 0) != 0;
  HostTensor ones = real_numbers({extent, extent}, {});
  for (std::size_t from = 0; from < extent; ++from)
    for (std::size_t to = 0; to < extent; ++to)
      ones.reals.push_back((reverse ? from > to : from < to) || (from == to && !exclusive) ? 1 : 0);
  n.set(mapped(n, x, axis, std::move(ones)));
}

// Keeps the upper or lower triangle; the rest becomes 0, also if it is not finite.
void read_triangle(NodeReader& n) {
  const Value x = n.value(0);
  const Shape shape = n.shape(x);
  if (shape.size() < 2) fail("its input of {} is not a matrix", n.text(x));
  const Shape matrix(shape.end() - 2, shape.end());
  for (const std::size_t axis : {shape.size() - 2, shape.size() - 1}) n.expect_not_batch(x, axis);
  if (matrix[0] > kMostConstantElements / matrix[1]) fail("its matrices of {} are too large", to_string(matrix));
  const HostTensor ones = real_numbers(matrix, std::vector<double>(elements(matrix), 1));
  const HostTensor* diagonal = n.has(1) ? &n.expect_constant(1) : nullptr;
  if (diagonal != nullptr) n.expect_same_for_batches(1);
  n.set(n.combine(Arithmetic::Operator::choice, x, constant(n, *evaluate("Trilu", n.attributes, {&ones, diagonal}))));
}

}  // namespace

void add_scans(ReadNodes& all) {
  all["CumSum"] = read_cumulative_sum;
  all["Trilu"] = read_triangle;
}

}  // namespace annulus
