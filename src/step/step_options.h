#pragma once

#include <cstddef>

#include "collectives/pipeline_link.h"
#include "src/step/parts.h"
#include "src/step/strategy.h"

namespace annulus {

struct StepOptions {
  // The number of parts in which a rank's share of the batch is computed, as even as possible; fewer if it has fewer
  // samples. The step is the same except for rounding and for batch norm, whose statistics are those of a part; the
  // memory needed is that of a part.
  std::size_t parts = 1;
  // If there are shards (collectives/shard_tree.h; 0: there are none), the parts are this rank's shards instead.
  std::size_t shards = 0, rank = 0, ranks = 1;
  float clip_norm = 0;            // see Update::clip(); 0: no clipping
  bool finite_gradients = false;  // Step::Hooks::judge is called
  // The maximum of a step; only needed if an embedding is shared, or parts have updates of their own.
  std::size_t global_batch = 0;
  StepStrategy strategy = Strategy::synchronous;  // see make_step()
  // The other stages, if the model is a stage of a pipeline; null: it is whole. Then the parts are its micro-batches,
  // and `ranks` those with this stage. REQUIRES: no shards or deferring.
  PipelineLink* pipeline = nullptr;
};

}  // namespace annulus
