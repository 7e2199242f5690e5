#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "collectives/shard_tree.h"
#include "kernels/base/host_memory.h"

namespace annulus {

// Sums several owners' arrays in shard-tree order, block by block in the L1 cache.
class TreeSum {
 public:
  // `owners`: each owner's subtrees; an owner has an array per subtree.
  TreeSum(const std::vector<std::vector<Range>>& owners, std::size_t shards) {
    for (std::size_t owner = 0; owner < owners.size(); ++owner)
      for (std::size_t number = 0; number < owners[owner].size(); ++number)
        arrays_.push_back({owners[owner][number], owner, number});
    std::ranges::sort(arrays_, {}, [](const Array& array) { return array.shards.begin; });
    std::vector<Range> ranges;
    for (const Array& array : arrays_) ranges.push_back(array.shards);
    order_ = tree_order(ranges, shards);
    inputs_.reserve(arrays_.size());
    stack_.reserve(arrays_.size());
  }

  // The subtrees that are left when all arrays have been summed.
  const std::vector<Range>& sums() const { return order_.sums; }

  // Sums arrays with `count` floats. at(owner, number) returns an array. Calls done(sum, elements, values) with each
  // block of each of sums(). If there is a single sum, `done` may overwrite these elements of the arrays.
  template <class At, class Done>
  void run(std::size_t count, const At& at, const Done& done) {
    inputs_.clear();
    for (const Array& array : arrays_) inputs_.push_back(at(array.owner, array.number));
    const auto scratch = scratch_.first(arrays_.size() * kBlock);
    for (std::size_t begin = 0; begin < count; begin += kBlock) {
      const Range block{begin, std::min(begin + kBlock, count)};
      stack_.clear();
      for (std::size_t i = 0; i < inputs_.size(); ++i) {
        stack_.push_back(inputs_[i] + begin);
        for (std::size_t join = 0; join < order_.joins[i]; ++join) {
          const float* const right = stack_.back();
          stack_.pop_back();
          float* const sum = scratch.data() + (stack_.size() - 1) * kBlock;
          add(stack_.back(), right, sum, block.size());
          stack_.back() = sum;
        }
      }
      for (std::size_t sum = 0; sum < stack_.size(); ++sum) done(sum, block, stack_[sum]);
    }
  }

 private:
  static constexpr std::size_t kBlock = 1024;  // floats

  struct Array {
    Range shards;
    std::size_t owner, number;
  };

  // `sum` may be `left` itself.
  static void add(const float* left, const float* right, float* sum, std::size_t count) {
#pragma GCC ivdep
    for (std::size_t i = 0; i < count; ++i) sum[i] = left[i] + right[i];
  }

  std::vector<Array> arrays_;  // in shard order
  TreeOrder order_;
  std::vector<const float*> inputs_, stack_;
  HostArray<float> scratch_;  // a block for each place on the stack
};

}  // namespace annulus
