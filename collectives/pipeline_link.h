#pragma once

#include <deque>
#include <span>
#include <vector>

#include "collectives/world/world.h"
#include "kernels/device.h"

namespace annulus {

// Messages between neighbouring pipeline stages: activations to the next stage, their gradients to the previous stage.
// By a single thread.
class PipelineLink {
 public:
  enum class Neighbour { previous, next };

  // `stages`: a rank for each stage, in order. Both must outlive the link. Collective.
  PipelineLink(const World& stages, Device& device);
  PipelineLink(const PipelineLink&) = delete;

  std::size_t stage() const { return static_cast<std::size_t>(stages_.rank()); }
  std::size_t stages() const { return static_cast<std::size_t>(stages_.size()); }

  // Sends a copy and returns immediately.
  void send(DeviceView values, Neighbour to);
  // Waits for the neighbour's next message. Throws Error if a rank was lost meanwhile.
  void receive(DeviceView values, Neighbour from);
  // Lets messages make progress while this rank computes: MPI moves them only within MPI calls.
  void progress();

  // Adds float32 values of the first stage and the last, in place on both, with equal bits. Called by these two stages
  // only.
  void add_other_end(DeviceView values);
  // Adds all stages' values, in place. Collective over the stages.
  void sum(std::span<double> values) const { stages_.sum(values); }

 private:
  struct Sending {
    Buffer memory;  // pinned, because a GPU copies to it several times as fast
    MPI_Request request = MPI_REQUEST_NULL;
  };

  int rank_of(Neighbour neighbour) const { return stages_.rank() + (neighbour == Neighbour::next ? 1 : -1); }
  void send(DeviceView values, int to);
  void receive(DeviceView values, int from);

  const World& stages_;
  Device& device_;
  const Channel channel_;
  std::deque<Sending> sendings_;  // reused when complete
  std::vector<std::byte> received_;
  Buffer piece_;  // the other end's values
};

}  // namespace annulus
