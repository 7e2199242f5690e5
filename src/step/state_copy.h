#pragma once

#include <cstdint>
#include <vector>

#include "kernels/base/host_memory.h"
#include "models/network/model.h"
#include "src/step/kept_state.h"
#include "src/step/optimizer.h"

namespace annulus {

// A copy in the host's memory of everything that steps change in a replica: weights with their moving average, and the
// optimizer's states. If every rank keeps a part of the states, the copy is of all parts, so that none is lost with its
// rank. It takes as much memory as these do.
class StateCopy {
 public:
  // All must outlive the copy.
  StateCopy(Model& model, Optimizer& optimizer, KeptState& kept_state);

  // REQUIRES: the parameters are those after a whole number of steps. Collective if ranks keep parts of the states; if
  // it throws, the copy has no defined contents.
  void take();
  std::uint64_t checksum() const;
  // Also if this rank now keeps another part. If each rank has states of its own, they become their mean, the same on
  // all ranks. Collective in both cases.
  void restore();

 private:
  struct Part {
    DeviceView original;
    Buffer copy;
  };

  template <class Visit>
  void for_each_kept(Visit visit);

  Model& model_;
  Optimizer& optimizer_;
  KeptState& kept_state_;
  std::vector<Part> parts_;   // the weights, and the state of the outer optimizer
  std::vector<Buffer> kept_;  // the optimizer's states and average, whole arenas
  std::uint64_t step_ = 0;    // the optimizer's
};

}  // namespace annulus
