#pragma once

#include <vector>

#include "kernels/base/tensor.h"
#include "kernels/operation.h"

namespace annulus {

class Op;

// The neighbours' work that an operation's passes do.
struct FusedPasses {
  // The work for `previous`, the operation that computes the first input. All but `none` read its inputs.
  enum class Previous {
    none,
    // backward() writes the gradient of previous's input instead of the own input's, and the backward pass of
    // `previous` must not run.
    whole_backward,
    // The passes do a part; the passes of `previous` do the rest.
    part,
    // The output of `previous` is not stored: forward() and backward() compute it.
    output,
    // As `output`, but backward() does nothing: previous's Bindings::output_gradient is this operation's.
    output_only,
    // A part, for an input with other readers: backward() reads their gradient, NeighbourBindings::gradient_of_others,
    // and writes the sum to other memory, instead of adding to it. Then the operation runs before the other readers in
    // forward, and after them in backward. At most one reader of a value does so.
    shared_part,
    // As `shared_part`, and forward() computes and stores the output of `previous`, the end of a residual block.
    shared_output,
  };

  Previous previous = Previous::none;
  // forward() also computes and stores previous's output, which other operations may read, too, and the
  // forward pass of `previous` must not run. Backward passes are separate.
  bool previous_forward = false;
  // forward() also writes the next operation's output, NeighbourBindings::next_output, and the forward pass of `next`
  // must not run. In inference it need not write this operation's output, and both may be the same array.
  bool next_forward = false;
  bool second_gradient = false;  // backward() adds NeighbourBindings::second_output_gradient to the output's gradient

  bool reads_previous_inputs() const { return previous != Previous::none; }
  bool replaces_output() const { return previous == Previous::output || previous == Previous::output_only; }
  bool adds_elsewhere() const { return previous == Previous::shared_part || previous == Previous::shared_output; }
};

// The operands of fused passes, besides Bindings. What is not needed is empty.
struct NeighbourBindings {
  std::vector<DeviceView> previous_inputs{};  // if FusedPasses::reads_previous_inputs() or previous_forward
  DeviceView previous_output{};               // if FusedPasses::previous_forward
  DeviceView gradient_of_others{};            // if FusedPasses::adds_elsewhere()
  DeviceView next_output{};                   // if FusedPasses::next_forward
  DeviceView second_output_gradient{};        // only if FusedPasses::second_gradient
};

// An operation that may do work of its neighbours within its own passes, or leave work to a neighbour, if the device
// has kernels for that and expects them to be faster.
class NeighbourFusion {
 public:
  // A neighbour is null if there is none, or if only one of the two runs backward.
  struct Neighbours {
    Op* previous = nullptr;     // computes the operation's only input
    bool shares_input = false;  // whether other operations read that input, too
    Op* next = nullptr;         // alone reads the operation's output, as its first input
    // Neighbours one of whose passes may be done completely. `next` has no other input. `previous` has one input, which
    // only it reads and whose gradient is needed.
    const Operation* next_forward = nullptr;
    const Operation* previous_backward = nullptr;
    // The operation before, whose output is the only input, if neither of the two is recomputed in backward. Others may
    // read that output as well.
    const Operation* previous_forward = nullptr;
  };

  virtual ~NeighbourFusion() = default;

  // Sets OpInfo::fused. To be called at most once, before bind(). Without neighbours, an operation may still choose how
  // it computes.
  virtual void fuse_neighbours(const Neighbours& /*neighbours*/) {}

  // To be called before bind(), if anything is fused.
  virtual void bind_neighbours(const NeighbourBindings& bindings) = 0;
};

}  // namespace annulus
