#include "kernels/base/error.h"
#include "src/onnx/fold.h"
#include "src/onnx/linear_map.h"
#include "src/onnx/reader.h"

namespace annulus {
namespace {

// Element i of the sums is the sum of the elements up to it: a product with a triangle of ones.
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

}  // namespace

void add_scans(ReadNodes& all) {
  all["CumSum"] = read_cumulative_sum;
}

}  // namespace annulus
