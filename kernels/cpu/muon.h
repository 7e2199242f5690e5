#pragma once

#include <memory>
#include <vector>

#include "kernels/update.h"

namespace annulus::cpu {

// The directions in which Muon moves matrices. The first state holds momenta, the second directions.
class MuonDirections {
 public:
  virtual ~MuonDirections() = default;

  // Computes the directions of all matrices in this slice. REQUIRES: see Update::measure_parameters().
  virtual void compute(const Range& slice) = 0;
};

// With UpdateArenas::exchange each matrix is computed by a single rank, and then slice() is the whole arena. `segments`
// must outlive the result.
std::unique_ptr<MuonDirections> make_muon_directions(const Muon& rule, const UpdateArenas& arenas,
                                                     const std::vector<UpdateSegment>& segments);

}  // namespace annulus::cpu
