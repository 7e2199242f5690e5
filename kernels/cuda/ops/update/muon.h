#pragma once

#include <memory>
#include <vector>

#include "kernels/cuda/ops/loops/context.h"
#include "kernels/update.h"

namespace annulus::cuda {

// The directions in which Muon moves matrices. The first state holds momenta, the second directions.
class MuonDirections {
 public:
  virtual ~MuonDirections() = default;

  // Enqueues the computation of the directions of all matrices in this slice; the whole arena with
  // UpdateArenas::exchange. REQUIRES: see Update::measure_parameters().
  virtual void compute(const Range& slice) = 0;
};

std::unique_ptr<MuonDirections> make_muon_directions(const Muon& rule, const UpdateArenas& arenas,
                                                     const std::vector<UpdateSegment>& segments, Context& context);

}  // namespace annulus::cuda
