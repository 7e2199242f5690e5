#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "collectives/world/backoff.h"
#include "collectives/world/world.h"
#include "kernels/base/split.h"

namespace annulus {

// One-sided exchange for asynchronous training (Li et al., "Scaling distributed machine learning with the parameter
// server", OSDI 2014). Every rank is a worker, or the owner of parameter ranges, which only the owner updates, or both:
//
//    worker                                        owner of range k
//    await_steps(first); pull(weights)     <-----  publish(step, weights)
//    computes a gradient
//    writes contribution(); contribute()   ----->  await_contribution(rank), of each rank; updates range k;
//    publish(...)
//    ...
//    await_steps(last); pull(weights)      <-----  serve(last)
//
// Steps are numbered from 1; the weights of step 0 are the initial ones.
//
// Two threads per rank may use this at a time, as the worker and as the owner.
class ParameterServer {
 public:
  virtual ~ParameterServer() = default;

  // By the worker. Returns when all owners have published this step.
  virtual void await_steps(std::uint64_t step) = 0;
  // Copies the newest published weights. Returns the earliest step among the ranges' steps. REQUIRES: the worker
  // awaited a step since the last call.
  virtual std::uint64_t pull(std::span<float> weights) = 0;
  // Memory for this rank's next contribution.
  virtual std::span<float> contribution() = 0;
  // Hands the contribution over. REQUIRES: fewer of this rank's contributions are unused than make_parameter_server()
  // allows.
  virtual void contribute() = 0;

  // By owners of ranges that are not empty. Waits for a rank's next contribution and returns it; only this owner's
  // ranges are valid, and only until the next call. Returns nothing if the rank was lost before (World::lost), and from
  // then on.
  virtual std::span<const float> await_contribution(std::size_t rank) = 0;
  // Lets workers pull this rank's weight ranges. REQUIRES: the steps before were published.
  virtual void publish(std::uint64_t step, std::span<const float> weights) = 0;
  // Returns when all workers that are left have this step, the last that was published.
  virtual void serve(std::uint64_t step) = 0;

  const std::vector<Range>& own() const { return owned_[rank_]; }
  std::size_t rank() const { return rank_; }
  std::size_t ranks() const { return owned_.size(); }
  void abandon() { owner_backoff_.abandon(); }  // ends the owner's waits: they throw Error
  // Receives nothing more, after ranks were lost. When all that are left have returned, this can be destroyed.
  // REQUIRES: no other call is in progress or follows.
  virtual void withdraw() {}

 protected:
  // `own`: see make_parameter_server(). Collective.
  ParameterServer(const World& world, const std::vector<Range>& own);

  const std::vector<Range>& owned(std::size_t rank) const { return owned_[rank]; }
  const std::vector<std::size_t>& servers() const { return servers_; }  // the ranks that own a range that is not empty
  const std::atomic<bool>& lost(std::size_t rank) const { return world_.lost(static_cast<int>(rank)); }

  Backoff worker_backoff_, owner_backoff_;

 private:
  const World world_;  // a copy: the original continues without lost ranks
  const std::size_t rank_;
  const std::vector<std::vector<Range>> owned_;  // by each rank
  std::vector<std::size_t> servers_;
};

// Creates a server in shared memory if all ranks are on a node that has enough, else a server over messages. `own`: the
// ranges of an array of `count` floats that this rank owns, the same number on every rank; they may be empty. Every
// element has exactly one owner. `pending`: a rank's maximum number of unused contributions. Collective.
std::unique_ptr<ParameterServer> make_parameter_server(const World& world, const std::vector<Range>& own,
                                                       std::size_t count, std::size_t pending);

}  // namespace annulus
