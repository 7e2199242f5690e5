#include "src/onnx/linear_map.h"

#include "src/onnx/masks.h"
#include "src/onnx/products.h"

namespace annulus {

Value mapped(NodeReader& n, Value x, std::size_t axis, HostTensor matrix) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < n.shape(x).size(); ++i) order.push_back(i);
  std::swap(order[axis], order.back());
  const Value last = n.transpose(x, order);
  Shape shape = n.shape(last);
  const std::size_t in = matrix.shape[0], out = matrix.shape[1];
  const auto place = n.builder().batch(last);
  const Value rows = n.reshape(last, {elements(shape) / in, in});
  const Value made = stacked_product(n, rows, constant(n, std::move(matrix)));
  shape.back() = out;
  return n.transpose(n.reshape(made, shape, place ? std::optional(place->axis) : std::nullopt), order);
}

}  // namespace annulus
