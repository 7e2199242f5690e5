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

// The one-sided exchange of an asynchronous training (Li et al., "Scaling distributed machine learning with the
// parameter server", OSDI 2014). Every rank is a worker, or the owner of some ranges of the parameters, which only it
// updates, or both:
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
// Two threads of a rank may use this at a time: one as the worker, one as the owner.
class ParameterServer {
 public:
  virtual ~ParameterServer() = default;

  // By the worker. Returns when all owners have published this step.
  virtual void await_steps(std::uint64_t step) = 0;
  // Copies the newest published weights. Returns the earliest step that some range of them is of. REQUIRES: the worker
  // awaited a step since the last call.
  virtual std::uint64_t pull(std::span<float> weights) = 0;
  // Memory for this rank's next contribution.
  virtual std::span<float> contribution() = 0;
  // Hands it over. REQUIRES: fewer of this rank's contributions are not used yet than make_parameter_server() allows.
  virtual void contribute() = 0;

  // By owners of ranges that are not empty. Returns a rank's next contribution when it was handed over; only this
  // rank's ranges are valid, and until the next call. Returns nothing if the rank was lost before (World::lost), and
  // from then on.
  virtual std::span<const float> await_contribution(std::size_t rank) = 0;
  // Lets workers pull this rank's ranges of the weights. REQUIRES: the steps before were published.
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
  const std::vector<std::size_t>& servers() const { return servers_; }  // the ranks whose ranges are not all empty
  const std::atomic<bool>& lost(std::size_t rank) const { return world_.lost(static_cast<int>(rank)); }

  Backoff worker_backoff_, owner_backoff_;

 private:
  const World world_;  // a copy: the original continues without lost ranks
  const std::size_t rank_;
  const std::vector<std::vector<Range>> owned_;  // by each rank
  std::vector<std::size_t> servers_;
};

// Creates one of shared memory if all ranks are on one node that has enough of it, else one of messages. `own`: the
// ranges of an array of `count` floats that this rank owns, the same number on every rank; they may be empty. Every
// element has one owner. `pending`: the maximum number of contributions of a rank that are not used yet. Collective.
std::unique_ptr<ParameterServer> make_parameter_server(const World& world, const std::vector<Range>& own,
                                                       std::size_t count, std::size_t pending);

}  // namespace annulus
