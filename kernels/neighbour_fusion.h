#pragma once

#include "kernels/device.h"

namespace annulus {

// An operation that may do a part of a neighbour's pass within its own pass, or leave a part to the neighbour, if the
// device has kernels for that and expects them to be faster. The neighbour's pass still runs, and does the rest.
class NeighbourFusion {
 public:
  // Null if there is no such operation, or if only one of the two runs backward.
  struct Neighbours {
    Op* previous = nullptr;     // computes the operation's only input
    bool shares_input = false;  // whether other operations read that input, too
    Op* next = nullptr;         // alone reads the operation's output, as its first input
  };

  virtual ~NeighbourFusion() = default;

  // Call once, also without neighbours, before bind().
  virtual void fuse_neighbours(const Neighbours& neighbours) = 0;

  // Whether the passes read Bindings::previous_input.
  virtual bool reads_previous_input() const = 0;
  // Whether the output of `previous` is not stored: forward() and backward() compute it from the input of `previous`.
  virtual bool computes_previous() const = 0;
  // Whether forward() computes and stores the output of `previous`, a residual block's end, from both inputs. REQUIRES:
  // adds_elsewhere().
  virtual bool ends_block() const { return false; }
  // Whether backward() reads the other readers' gradient of a shared input, Bindings::gradient_of_others, and writes
  // the sum to other memory, instead of adding to it. Then the operation runs before these readers in forward, and
  // after them in backward. At most one reader of a value does so.
  virtual bool adds_elsewhere() const { return false; }
  // Whether backward() leaves the work to `previous`, whose Bindings::output_gradient is then this operation's.
  virtual bool leaves_gradient() const { return false; }
};

// Whether an operation is a NeighbourFusion for which `what` is true.
inline bool fuses(const Op& op, bool (NeighbourFusion::*what)() const) {
  const auto* fusion = dynamic_cast<const NeighbourFusion*>(&op);
  return fusion != nullptr && (fusion->*what)();
}

}  // namespace annulus
