#pragma once

#include "kernels/device.h"

namespace annulus {

// An operation that may do a part of its neighbours' passes within its own passes, or leave a part of its own to them,
// if the device has kernels for that and expects them to be faster. The neighbours' passes still run, and do the rest.
class NeighbourFusion {
 public:
  virtual ~NeighbourFusion() = default;

  // `previous` computes the operation's only input, from one input; `next` reads its output first. Null if there is no
  // such operation, if others read the value in between, or if only one of both runs backward.
  // REQUIRES: bind() has not been called.
  virtual void fuse_neighbours(Op* previous, Op* next) = 0;

  // Whether the passes read Bindings::previous_input.
  virtual bool reads_previous_input() const = 0;
  // Whether the output of `previous` is not stored: forward() and backward() compute it from that input.
  virtual bool computes_previous() const = 0;
  // Whether backward() leaves its work to `previous`, whose Bindings::output_gradient is that of this operation.
  virtual bool leaves_gradient() const { return false; }
};

inline bool reads_previous_input(const Op& op) {
  const auto* fusion = dynamic_cast<const NeighbourFusion*>(&op);
  return fusion != nullptr && fusion->reads_previous_input();
}

inline bool computes_previous(const Op& op) {
  const auto* fusion = dynamic_cast<const NeighbourFusion*>(&op);
  return fusion != nullptr && fusion->computes_previous();
}

inline bool leaves_gradient(const Op& op) {
  const auto* fusion = dynamic_cast<const NeighbourFusion*>(&op);
  return fusion != nullptr && fusion->leaves_gradient();
}

}  // namespace annulus
