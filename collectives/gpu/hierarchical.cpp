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
  Hierarchical(const World& world, cuda::SideLane& lane, WireType wire)
      : StreamAlgorithm(lane.stream()), node_(make_direct_all_reduce(world.node(), lane)) {
    const World across_nodes = world.across_nodes();
    world.all_or_none([&] { across_nodes_ = make_nccl(across_nodes, lane, wire); });  // as all ranks must fail
    scratch_ = allocate(kScratchBytes);
  }
  ~Hierarchical() override { leave(); }

  void end_waits() noexcept override {
    node_->end_waits();
    across_nodes_->end_waits();
  }

  void put(DeviceView values, Verb verb) override {
    if (verb != Verb::all_reduce) fail("GPUs of several nodes have no reduce-scatter or all-gather");
    if (own(values)) return put_array(values);
    for_each_piece(values, [this](DeviceView piece) {
      copy(piece, scratch_);
      put_array(scratch_.slice(0, piece.bytes));
      copy(scratch_.slice(0, piece.bytes), piece);
    });
  }

  Range chunk(std::size_t) const override { fail("an all-reduce over GPUs of several nodes has no chunks"); }
  DeviceView allocate(std::size_t bytes) override { return memory_.emplace_back(node_->allocate(bytes)); }
  // Counts the bytes between nodes.
  std::uint64_t bytes_to_send(DeviceView values, Verb verb) const override {
    const auto sent = [&](DeviceView array) { return across_nodes_->bytes_to_send(own_chunk(array), verb); };
    if (own(values)) return sent(values);
    std::uint64_t bytes = 0;
    for_each_piece(values, [&](DeviceView piece) { bytes += sent(piece); });
    return bytes;
  }

  void expect_all_there() override {
    node_->expect_all_there();
    across_nodes_->expect_all_there();
  }
  Place snapshot() override { return node_->snapshot(); }

 private:
  bool own(DeviceView values) const {
    return std::ranges::any_of(memory_, [&](DeviceView memory) {
      return values.address >= memory.address && values.address + values.bytes <= memory.address + memory.bytes;
    });
  }

  // Visits the pieces, of scratch size, of an array elsewhere.
  template <class Visit>
  void for_each_piece(DeviceView values, const Visit& visit) const {
    for (std::size_t begin = 0; begin < values.bytes; begin += scratch_.bytes)
      visit(values.slice(begin, std::min(values.bytes - begin, scratch_.bytes)));
  }

  DeviceView own_chunk(DeviceView array) const {
    const Range own = node_->chunk(array.bytes / sizeof(float));
    return array.slice(own.begin * sizeof(float), own.size() * sizeof(float));
  }

  // Chunks with the same number have the same size on all nodes.
  void put_array(DeviceView array) {
    if (array.bytes < sizeof(float)) return;
    node_->put(array, Verb::reduce_scatter);
    across_nodes_->put(own_chunk(array), Verb::all_reduce);
    node_->put(array, Verb::all_gather);
  }

  void copy(DeviceView from, DeviceView to) const {
    cuda::check(cudaMemcpyAsync(to.address, from.address, from.bytes, cudaMemcpyDeviceToDevice, stream()));
  }

  std::vector<DeviceView> memory_;
  std::unique_ptr<StreamAlgorithm> node_, across_nodes_;
  DeviceView scratch_;
};

}  // namespace

std::unique_ptr<StreamAlgorithm> make_gpu_hierarchical(const World& world, cuda::SideLane& lane, WireType wire) {
  return std::make_unique<Hierarchical>(world, lane, wire);
}

}  // namespace annulus
