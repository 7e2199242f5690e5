#pragma once

#include <optional>
#include <vector>

#include "kernels/base/split.h"
#include "kernels/cuda/ops/loops/context.h"
#include "kernels/cuda/ops/loops/strided_loops.h"

namespace annulus::cuda {

template <class T>
struct InputGradient;

// Fills a value tensor with another tensor's elements: element (i, j, ...) in `to` is the source's element at first + i
// strides[0] + j strides[1] + ...
class Move {
 public:
  struct Plan {
    TensorSpec from, to;
    Strides strides;              // in the source, for each dimension in `to`
    std::int64_t first = 0;       // may be negative, if a dimension's range does not begin at 0
    std::vector<Range> ranges{};  // for each dimension in `to`: elements outside get the value `fill`; empty: all
    float fill = 0;
  };

  Move(const Plan& plan, Context& context);

  // Returns whether both tensors have the same bytes in memory.
  bool keeps_memory() const;

  // `accumulate`: adds to `to` instead of writing it. Does nothing if both have the same address and content.
  void run(DeviceView from, DeviceView to, bool accumulate) const;

  struct Pull {
    Loop<1> loop;
    std::int64_t first;
    unsigned begin[Loop<1>::kDimensions], end[Loop<1>::kDimensions];
    unsigned channel_begin, channel_end;
    float fill;
  };

 private:
  template <class T>
  void transpose(const T* from, const InputGradient<T>& to) const;

  Context& context_;
  Pull pull_{};
  bool same_size_;
  std::optional<unsigned> transposed_;  // the dimension with neighbours in the source, but not in `to`
};

// Moves a value tensor to another layout for the same shape.
Move to_layout(const TensorSpec& from, const TensorSpec& to, Context& context);

}  // namespace annulus::cuda
