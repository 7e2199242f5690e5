#pragma once

#include <vector>

#include "kernels/base/host_memory.h"
#include "models/model.h"
#include "src/step/optimizer.h"

namespace annulus {

// A copy in the host's memory of everything that steps change in a replica: weights with their moving average, and the
// optimizer's states. It takes as much memory as these do.
class StateCopy {
 public:
  // Both must outlive the copy.
  StateCopy(Model& model, Optimizer& optimizer);

  void take();  // REQUIRES: the parameters are those after a whole number of steps
  void restore();

 private:
  struct Part {
    DeviceView original;
    Buffer copy;
  };

  Model& model_;
  Optimizer& optimizer_;
  std::vector<Part> parts_;
  std::uint64_t step_ = 0;  // the optimizer's
};

}  // namespace annulus
