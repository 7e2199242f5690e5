#pragma once

#include <cstddef>
#include <span>
#include <variant>
#include <vector>

#include "kernels/base/split.h"
#include "src/step/pipeline_schedule.h"

namespace annulus {

// A part of a rank's share of a batch, which passes through the network at once.
struct BatchPart {
  Range samples;           // of the share; may be empty
  std::size_t number = 0;  // in the order of the passes
  std::size_t slot = 0;    // of the network that computes it, see Model::network()
  bool last = false;       // of the share
};

// The ways to cut a share. Each gives at least one part.

// In `most` parts, as even as possible; fewer if there are fewer samples.
struct EvenParts {
  std::size_t most = 1;
};
// A part for each shard of this rank (collectives/shard_tree.h).
struct ShardParts {
  std::size_t shards, ranks, rank;
};
// In parts of `size` samples; the last one may be smaller.
struct EqualParts {
  std::size_t size;
};

// Cuts a rank's share of each batch. Keeps the memory of the parts, so that no step allocates any.
class PartPlan {
 public:
  using Cut = std::variant<EvenParts, ShardParts, EqualParts>;

  // `stage`, `stages`: of a pipeline, whose micro-batches are the parts; see pipeline_schedule().
  explicit PartPlan(const Cut& cut, std::size_t stage = 0, std::size_t stages = 1)
      : cut_(cut), stage_(stage), stages_(stages) {}

  // Returns the parts of a share of `share` samples of a batch of `batch`. Valid until the next call.
  std::span<const BatchPart> of(std::size_t batch, std::size_t share);
  // Returns the passes of these parts in the order in which this stage runs them.
  auto schedule() const { return pipeline_schedule(stage_, stages_, parts_.size()); }

 private:
  Cut cut_;
  std::size_t stage_, stages_;
  std::vector<BatchPart> parts_;
};

}  // namespace annulus
