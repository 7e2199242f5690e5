#include "collectives/gpu/hierarchical.h"

#include <algorithm>
#include <vector>

#include "collectives/gpu/direct_all_reduce.h"
#include "collectives/gpu/nccl.h"
#include "kernels/base/error.h"
#include "kernels/cuda/runtime/side_lane.h"

namespace annulus {
namespace {

constexpr std::size_t kScratchBytes = 4 << 20;  // for arrays outside allocate()'s memory

class Hierarchical final : public StreamAlgorithm {
 public:
  Hierarchical(const World& world, cuda::SideLane& lane)
      : StreamAlgorithm(lane.stream()),
        node_(make_direct_all_reduce(world.node(), lane)),
        across_nodes_(make_nccl(world.across_nodes(), lane)),
        scratch_(allocate(kScratchBytes)) {}
  ~Hierarchical() override { leave(); }

  void end_waits() noexcept override {
    node_->end_waits();
    across_nodes_->end_waits();
  }

  void put(DeviceView values, Operation operation) override {
    if (operation != Operation::all_reduce) fail("half an all-reduce over GPUs of several nodes");
    const bool own_memory = std::ranges::any_of(memory_, [&](DeviceView memory) {
      return values.address >= memory.address && values.address + values.bytes <= memory.address + memory.bytes;
    });
    if (own_memory) return put_array(values);
    while (values.bytes > 0) {
      const DeviceView piece = values.slice(0, std::min(values.bytes, scratch_.bytes));
      copy(piece, scratch_);
      put_array(scratch_.slice(0, piece.bytes));
      copy(scratch_.slice(0, piece.bytes), piece);
      values = values.slice(piece.bytes, values.bytes - piece.bytes);
    }
  }

  Range chunk(std::size_t) const override { fail("an all-reduce over GPUs of several nodes has no chunks"); }
  DeviceView allocate(std::size_t bytes) override { return memory_.emplace_back(node_->allocate(bytes)); }
  std::uint64_t bytes_to_send(DeviceView, Operation) const override { return 0; }  // NCCL chooses the algorithm

  void expect_all_there() override {
    node_->expect_all_there();
    across_nodes_->expect_all_there();
  }
  Place snapshot() override { return node_->snapshot(); }

 private:
  // Chunks with the same number have the same size on all nodes.
  void put_array(DeviceView array) {
    if (array.bytes < sizeof(float)) return;
    node_->put(array, Operation::reduce_scatter);
    const Range own = node_->chunk(array.bytes / sizeof(float));
    across_nodes_->put(array.slice(own.begin * sizeof(float), own.size() * sizeof(float)), Operation::all_reduce);
    node_->put(array, Operation::all_gather);
  }

  void copy(DeviceView from, DeviceView to) const {
    cuda::check(cudaMemcpyAsync(to.address, from.address, from.bytes, cudaMemcpyDeviceToDevice, stream()));
  }

  std::vector<DeviceView> memory_;
  std::unique_ptr<StreamAlgorithm> node_, across_nodes_;
  DeviceView scratch_;
};

}  // namespace

std::unique_ptr<StreamAlgorithm> make_gpu_hierarchical(const World& world, cuda::SideLane& lane) {
  return std::make_unique<Hierarchical>(world, lane);
}

}  // namespace annulus
