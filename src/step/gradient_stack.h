#pragma once

#include <cstddef>
#include <vector>

#include "collectives/all_reduce.h"
#include "collectives/shard_tree.h"
#include "kernels/device.h"

namespace annulus {

// The sums of the gradients of a step's parts but the last one. The last part's gradients are computed in the arena and
// sent bucket by bucket, each when the sums have been added to it.
//
// Without shards there is one sum, which begins with zeros. With shards (collectives/shard_tree.h) there is one for
// each subtree that is not complete yet; those that are all-reduced are in the all-reduce's memory.
class GradientStack {
 public:
  // `gradients`: the arena without the ranks' control flags. `most_parts`: of a step.
  GradientStack(Device& device, AllReduce& all_reduce, DeviceView arena, DeviceView gradients)
      : device_(device), all_reduce_(all_reduce), arena_(arena), gradients_(gradients) {}

  // To be called first, and if the number of ranks has changed.
  void plan_parts(std::size_t most_parts);
  void plan_shards(const TreeOrder& order);

  void begin(std::size_t parts);  // a step
  void push();                    // a part's gradients, which are complete in the arena
  void begin_last();
  // Adds the sums to the last part's gradients, of which the first `count` floats of the arena are final.
  void add(std::size_t count);

 private:
  void allocate(std::size_t height, std::size_t subtrees);
  std::size_t joins() const { return order_.joins.empty() ? height_ : order_.joins[part_]; }
  DeviceView sum(std::size_t number) const;

  Device& device_;
  AllReduce& all_reduce_;
  const DeviceView arena_, gradients_;
  TreeOrder order_;               // of this rank's shards; empty without shards
  std::vector<DeviceView> sums_;  // as many as are needed at the same time
  std::vector<Buffer> memory_;    // of arrays that are not in the all-reduce's memory
  std::size_t part_ = 0;          // the next one
  std::size_t height_ = 0;        // number of sums
  std::size_t joining_ = 0;       // number of the upper ones that are added to the last part's gradients
  std::size_t added_ = 0;         // bytes of gradients_ to which they have been added
};

}  // namespace annulus
