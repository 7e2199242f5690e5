#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "kernels/base/split.h"
#include "kernels/base/tensor.h"
#include "kernels/update.h"

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
  // Gets the parts that other ranks wrote. An array has ranks() parts, each a multiple of 64 floats: the largest
  // unit of all-reduces' chunks.
  virtual void gather(DeviceView parts) = 0;
};

// Shares items among ranks so that costs are balanced: the most expensive first, each to the rank with the least so
// far. Returns each rank's items in this order.
std::vector<std::vector<std::size_t>> share_by_cost(const std::vector<double>& costs, std::size_t ranks);

// The segments that Muon orthogonalizes.
std::vector<UpdateSegment> matrices_of(const std::vector<UpdateSegment>& segments);
// The matrices that begin in a slice of the arena. REQUIRES: `matrices` are in arena order.
std::span<const UpdateSegment> matrices_in(const Range& slice, std::span<const UpdateSegment> matrices);

// How ranks share matrices: each has an owner, which orthogonalizes it. A rank updates the momenta for the gradients
// that it keeps, and needs their directions.
//
//    gradients        [ 0 | 1 | 2 ]  rank r updates slice r's momenta, and exchanges gradients for directions
//                     [ all-gather ]  every rank has all directions, and the owners orthogonalize theirs
//    parts in a round [ 0 | 1 | 2 ]  owner r writes directions for some matrices
//                     [ all-gather ]  rank r copies what belongs to slice r
struct MatrixShares {
  struct KeptPart {
    Range range;
    std::size_t place;  // in the states
  };
  struct Owned {
    std::size_t matrix, place;  // in the rank's part, in floats
  };
  struct Round {
    std::size_t part = 0;                    // size of each rank's, in floats
    std::vector<std::vector<Owned>> owners;  // by rank
  };

  MatrixShares(const UpdateArenas& arenas, std::vector<UpdateSegment> all);

  std::size_t largest_part() const;
  // Calls visit(part) for each part that this rank keeps.
  template <class Visit>
  void for_each_kept(const Visit& visit) const {
    for (const std::vector<KeptPart>& parts : kept)
      for (const KeptPart& one : parts) visit(one);
  }

  const std::vector<UpdateSegment> matrices;
  std::vector<Range> ranges;                // the matrices
  std::vector<std::vector<KeptPart>> kept;  // by matrix
  std::vector<Round> rounds;
};

}  // namespace annulus
