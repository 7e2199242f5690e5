#pragma once

#include <memory>
#include <string>

#include "collectives/all_reduce_worker.h"

namespace annulus {

// An algorithm for arrays in GPU memory that is driven by a host thread. That thread calls all_reduce() for the arrays
// in the order of the begin() calls; the enqueueing thread calls the other functions.
class HostDrivenAllReduce : public AllReduceAlgorithm {
 public:
  using AllReduceAlgorithm::AllReduceAlgorithm;

  // Starts an all-reduce of `values` after all work queued on the device's lane so far.
  virtual void begin(DeviceView values) = 0;

  // `number`: of the all-reduce, counted from 1. REQUIRES: all_reduce() has returned for it.
  virtual void join(std::uint64_t number) = 0;  // later work on the lane comes after it
  virtual bool done(std::uint64_t number) = 0;
};

// Runs a HostDrivenAllReduce as an AllReduce.
class HostDriven final : public AllReduce {
 public:
  // `context`, `name` and `why`: see AllReduceWorker.
  HostDriven(std::unique_ptr<HostDrivenAllReduce> sum, const std::shared_ptr<AllReduceContext>& context,
             const std::string& name, const std::string& why)
      : AllReduce(info_of(*sum, name, why)),
        algorithm_(*sum),
        context_(context),
        worker_(std::move(sum), context, name, why, 0) {}

  DeviceView allocate(std::size_t bytes) override { return worker_.allocate(bytes); }
  Ticket enqueue(DeviceView values, Next next, std::size_t bucket) override {
    algorithm_.begin(values);
    return worker_.enqueue(values, next, bucket);
  }
  void join(Ticket ticket) override {
    worker_.wait(ticket);
    algorithm_.join(ticket);
  }
  void wait(Ticket ticket) override {
    worker_.wait(ticket);
    for (int polls = 0; !algorithm_.done(ticket); ++polls) context_->backoff.pause(polls);
  }
  void abandon() noexcept override { worker_.abandon(); }
  void record_to(TraceLane* lane) override { worker_.record_to(lane); }
  const AllReduceProgress& progress() const override { return worker_.progress(); }

 private:
  HostDrivenAllReduce& algorithm_;  // the worker's
  std::shared_ptr<AllReduceContext> context_;
  AllReduceWorker worker_;
};

}  // namespace annulus
