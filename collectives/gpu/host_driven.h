#pragma once

#include <memory>
#include <string>

#include "collectives/all_reduce_worker.h"

namespace annulus {

// An algorithm for arrays in GPU memory that a thread of the host's drives. sum() is called by that thread, for the
// arrays in the order in which begin() was; the others by the thread that enqueues.
class HostDrivenAllReduce : public AllReduceAlgorithm {
 public:
  // What the device's lane was given so far is to be in the array.
  virtual void begin(DeviceView values) = 0;

  // Of the sum of this number, the first is 1, for which sum() has returned.
  virtual void join(std::uint64_t number) = 0;  // what the lane is given from now on comes after it
  virtual bool done(std::uint64_t number) = 0;
};

// An AllReduce of it.
class HostDriven final : public AllReduce {
 public:
  // `patience`, `name` and `why`: see AllReduceWorker.
  HostDriven(std::unique_ptr<HostDrivenAllReduce> sum, const std::shared_ptr<Backoff>& backoff, std::string name,
             std::string why)
      : sum_(*sum), backoff_(backoff), worker_(std::move(sum), backoff, std::move(name), std::move(why), 0) {}

  std::string description() const override { return worker_.description(); }
  std::string order() const override { return worker_.order(); }
  std::optional<std::size_t> crossover() const override { return worker_.crossover(); }
  WireType wire() const override { return worker_.wire(); }
  DeviceView allocate(std::size_t bytes) override { return worker_.allocate(bytes); }
  Ticket enqueue(DeviceView values, Next next, std::size_t bucket) override {
    sum_.begin(values);
    return worker_.enqueue(values, next, bucket);
  }
  void join(Ticket ticket) override {
    worker_.wait(ticket);
    sum_.join(ticket);
  }
  void wait(Ticket ticket) override {
    worker_.wait(ticket);
    for (int looks = 0; !sum_.done(ticket); ++looks) backoff_->pause(looks);
  }
  void abandon() noexcept override { worker_.abandon(); }
  std::uint64_t bytes_sent() const override { return worker_.bytes_sent(); }
  void record_to(TraceLane* lane) override { worker_.record_to(lane); }
  const AllReduceProgress& activity() const override { return worker_.activity(); }

 private:
  HostDrivenAllReduce& sum_;  // the worker's
  std::shared_ptr<Backoff> backoff_;
  AllReduceWorker worker_;
};

}  // namespace annulus
