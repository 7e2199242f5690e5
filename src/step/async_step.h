#pragma once

#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "collectives/parameter_server.h"
#include "src/step/look_ahead.h"
#include "src/step/round_step.h"
#include "src/step/round_steps.h"

namespace annulus {

// Each rank, or each of some that only serve, owns a chunk of every bucket, and keeps the optimizer's state of it.
// Ranks push the gradients of their parts to the owners, and pull weights from them, without waiting for each other as
// long as none is more than `staleness` steps ahead (Ho et al., "More effective distributed ML via a stale synchronous
// parallel parameter server", NIPS 2013). Within a round, ranks pull weights that are predicted two steps ahead
// (LookAhead). A gradient of weights that are N > 3 steps old is divided by N - 2 (Zhang et al., "Staleness-aware
// async-SGD for distributed deep learning", IJCAI 2016). With staleness 0, rounds counted in steps, and no ranks that
// only serve, the bits are those of synchronous steps that sum in a ring. If ranks compute on GPUs, owners keep all of
// this in the host's memory and update there, so the bits are others. Gradients of a part that overflow in 16 bits
// count as zeros.
//
// During a round this rank's thread is the worker: for each part of its share it pulls the weights and pushes
// gradients. Another thread is the owner of this rank's chunks: it updates them in every step of the round. Ranks that
// only serve have no parts, and the others no chunks then, so that they can be lost during a round: the owners go on
// without their gradients.
//
// A rank may compute on a GPU. Then its weights and gradients are copied through pinned memory; all else is the host's.
class AsyncStep final : public RoundStep {
 public:
  AsyncStep(const StepTools& tools, const BucketOptions& buckets, const StepOptions& options);
  ~AsyncStep() override { stop(); }

  void expect(const StepPlan& next) override;
  void continue_with(const StepOptions& options) override;
  // The sum of the ranks' chunks.
  DeviceView gather(DeviceView state) override;

 protected:
  void begin_part(std::size_t number) override;
  std::size_t mean_over(const BatchPart& part) const override { return round_->samples(parts()[part.number].due); }
  void end_part(std::size_t number) override;
  void end_round() override;
  void wait_for_metrics() override;

 private:
  void plan();
  void stop();
  void push(std::size_t number);
  std::uint64_t pull();
  void publish_initial();
  void update_own_chunks();
  void add(std::span<const float> contribution, bool first);
  bool overflowed();
  void correct(std::span<float> gradients, bool overflow) const;
  void await_steps(std::uint64_t steps);

  bool serves() const { return async_.servers == 0 || rank() >= async_.round.ranks; }
  std::size_t rank() const { return static_cast<std::size_t>(async_.world->rank()); }
  std::vector<Range> own_chunks() const;
  std::span<const RoundSteps::Part> parts() const { return round_->parts(rank()); }
  bool due_together(std::size_t a, std::size_t b) const { return parts()[a].due == parts()[b].due; }
  // Returns the earliest step whose weights may be used after `steps` steps.
  std::uint64_t earliest(std::uint64_t steps) const { return steps - std::min<std::uint64_t>(steps, async_.staleness); }

  // What owners update of an arena, and host memory for it.
  DeviceView served(DeviceView arena) const { return arena.slice(0, sums_.view().bytes); }
  DeviceView on_host(DeviceView arena) const { return host_of_gpu_ ? pinned_.view() : served(arena); }
  std::span<float> to_host(DeviceView arena);

  const BucketOptions bucket_options_;
  AsyncRounds async_;
  const std::unique_ptr<Device> host_of_gpu_;  // null if the device is the host
  Device& host_;
  Buffer weights_, sums_;    // this rank's chunks are used: their weights, and the sum of a step's gradients
  const Buffer pinned_;      // see on_host(); empty if the device is the host
  const DeviceView digits_;  // of a norm, in the all-reduce's memory
  std::unique_ptr<ParameterServer> server_;
  std::optional<LookAhead> look_ahead_;  // none without staleness
  std::optional<RoundSteps> round_;
  std::uint64_t done_ = 0;   // steps before this round, since the last plan()
  std::size_t age_ = 0;      // updates between the weights of this part and the update by its gradients
  std::future<void> owner_;  // last: it ends before the members that it uses
};

}  // namespace annulus
