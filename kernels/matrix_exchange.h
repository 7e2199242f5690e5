#pragma once

#include <cstddef>
#include <vector>

#include "kernels/base/split.h"
#include "kernels/base/tensor.h"

namespace annulus {

// Lets ranks share the work on whole matrices. All functions are collective, and in the
// lane's order.
class MatrixExchange {
 public:
  virtual ~MatrixExchange() = default;

  virtual std::size_t ranks() const = 0;
  virtual std::size_t rank() const = 0;  // the number of the part that this rank writes, see gather()

  // Gets the parts of these ranges of the gradients that other ranks keep. `ranges`: in floats, ascending and disjoint.
  // May also overwrite gradients in between that this rank does not keep.
  virtual void gather_gradients(const std::vector<Range>& ranges) = 0;

  // Returns memory for gather(). Call before the first step, with the same size on every rank.
  virtual DeviceView allocate(std::size_t bytes) = 0;
  // Gets the parts that other ranks wrote. An array has ranks() parts, each a multiple of 16 floats.
  virtual void gather(DeviceView parts) = 0;
};

// Shares items among ranks so that costs are balanced: the most expensive first, each to the rank with the least so
// far. Returns each rank's items in this order.
std::vector<std::vector<std::size_t>> share_by_cost(const std::vector<double>& costs, std::size_t ranks);

}  // namespace annulus
