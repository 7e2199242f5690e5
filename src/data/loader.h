#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>
#include <vector>

#include "kernels/base/host_memory.h"
#include "src/data/input_plan.h"
#include "src/data/sample_reader.h"
#include "src/data/sampler.h"
#include "src/data/samples.h"

namespace annulus {

// A sample that took no part, and why.
struct BadSample {
  std::size_t sample;
  std::string reason;  // a line that names it
};

// One rank's share of a step.
struct Batch {
  StepPlan step;
  // size() x height x width x channels. The operating system copies from files half as fast to where no cache line
  // begins.
  std::vector<std::uint8_t, CacheLineAllocator<std::uint8_t>> images;
  std::vector<std::int32_t> labels;
  std::vector<std::int32_t> keys{};  // a random one of each sample in this epoch, for Network::load
  std::vector<BadSample> bad{};      // skipped, by number

  std::size_t size() const { return labels.size(); }
};

// Which batches a rank wants.
struct BatchRequest {
  std::uint64_t seed = 0;
  std::size_t global_batch = 0;
  int rank = 0, ranks = 1;
  Cursor start;
  std::uint64_t end_epoch = UINT64_MAX;  // nothing is read of this one and later ones
  // Of the ranks that share a node's file cache, which this is: they share giving hints of what will be read.
  int local_rank = 0, local_size = 1;
};

// Reads and prepares this rank's share of every step ahead of time, on threads of its own: plan.workers of them take
// samples of one batch after the other, and batches are delivered in order. Memory is bounded by plan.prefetch batches,
// which are reused. What is delivered is a function of (seed, epoch, sample) alone: threads, ranks and prefetching
// change no bit of it.
//
// Bad samples (damaged, wrongly labelled, not to be read) end the run, or, with plan.skip_bad, take no part: in
// training the next good sample, by number, takes the place, in evaluation the batch is smaller. Either depends on the
// data only.
class Loader {
 public:
  Loader(const Samples& dataset, const InputPlan& plan, const BatchRequest& request);
  ~Loader();

  // The next step's share, valid until the next call. Throws what was met in reading it, again and again, and where
  // request.end_epoch has come.
  const Batch& next();

  ReadTimes times() const;  // of what has been read so far

 private:
  // A batch that is being made. Workers take its samples from the first to the last, a few at a time.
  struct Slot {
    Batch batch;
    Range share;  // positions
    // Of each: the sample, and the key of what is random about it.
    std::vector<std::size_t> samples;
    std::vector<std::uint64_t> keys;
    std::size_t taken = 0;  // samples of it
    std::size_t done = 0;
    std::exception_ptr failure;

    bool complete() const { return done == share.size(); }
  };
  struct Portion {
    Slot& slot;
    Range samples;  // in the batch
  };

  void reserve(std::size_t images);  // in every slot
  void work(const std::stop_token& stop, std::size_t worker);
  void fill(SampleReader& reader, const Portion& portion, std::vector<BadSample>& bad);
  void choose(Slot& slot, std::size_t place, std::size_t sample) const;
  std::int32_t read(SampleReader& reader, Slot& slot, std::size_t place, std::vector<BadSample>& bad) const;
  void give_hints(const SampleOrder& order, std::uint64_t epoch, std::size_t position);
  std::optional<Portion> take(const std::stop_token& stop);

  // With mutex_ held.
  Slot& newest() { return slots_[(opened_ - 1) % slots_.size()]; }
  bool newest_has_samples() { return !failed_ && opened_ > 0 && newest().taken < newest().share.size(); }
  bool may_open() const {
    return !failed_ && cursor_.epoch < request_.end_epoch && opened_ - delivered_ < slots_.size() - 1;
  }
  bool ended() const { return delivered_ == opened_ && cursor_.epoch >= request_.end_epoch; }
  void open_next();
  Portion take_from(Slot& slot) const;
  void finish(const Portion& portion, std::vector<BadSample>& bad, const std::exception_ptr& failure);
  void settle_bad(Batch& batch) const;

  const Samples& dataset_;
  const InputPlan plan_;
  const BatchRequest request_;

  // A ring: batch number n lies in slot n % slots. Those in [delivered_, opened_) are ready or being made, and
  // delivered_ - 1 is the caller's.
  std::vector<Slot> slots_;
  mutable std::mutex mutex_;  // guards what follows, and the slots' counts
  std::condition_variable_any changed_;
  Cursor cursor_;  // of the next batch to open
  std::uint64_t opened_ = 0;
  std::uint64_t delivered_ = 0;
  bool failed_ = false;                                          // nothing more is begun
  std::optional<std::pair<std::uint64_t, std::size_t>> hinted_;  // epoch and window
  std::vector<ReadTimes> times_;                                 // of each worker

  std::vector<std::jthread> threads_;  // last: they stop before what they use goes away
};

}  // namespace annulus
