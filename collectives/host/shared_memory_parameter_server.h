#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "collectives/parameter_server.h"
#include "collectives/world/shared_counter.h"
#include "collectives/world/shared_memory.h"

namespace annulus {

// A ParameterServer in memory that a node's ranks share. Nobody receives: a worker copies published weights, and an
// owner reads gradients, both from the other rank's memory.
class SharedMemoryParameterServer final : public ParameterServer {
 public:
  // See make_parameter_server(). REQUIRES: all ranks are on the same node.
  SharedMemoryParameterServer(const World& world, const std::vector<Range>& own, std::size_t count,
                              std::size_t pending);

  void await_steps(std::uint64_t step) override;
  std::uint64_t pull(std::span<float> weights) override;
  std::span<float> contribution() override { return contributions_[contributed_ % contributions_.size()]; }
  void contribute() override;

  std::span<const float> await_contribution(std::size_t rank) override;
  void publish(std::uint64_t step, std::span<const float> weights) override;
  void serve(std::uint64_t /*step*/) override {}  // workers read it without this rank

 private:
  // A rank's parts in the shared memory.
  struct Peer {
    SharedCounter* published;    // steps + 1: 0 before the initial weights
    SharedCounter* contributed;  // contributions that it handed over
    std::uint64_t used = 0;      // the number of contributions that this rank has used
  };
  std::span<float> array(std::size_t rank, std::span<const float> own) const;

  SharedMemory memory_;
  const std::size_t count_;
  std::vector<Peer> peers_;                      // all ranks
  std::vector<std::span<float>> contributions_;  // this rank's, used in turn
  std::uint64_t contributed_ = 0;
  std::vector<std::span<float>> published_;  // this rank's, used in turn: workers may still read the last
};

}  // namespace annulus
