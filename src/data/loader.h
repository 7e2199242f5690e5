#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>
#include <vector>

#include "kernels/base/host_memory.h"
#include "kernels/base/mixed_label.h"
#include "src/data/input_plan.h"
#include "src/data/round_plan.h"
#include "src/data/sample_reader.h"
#include "src/data/sampler.h"
#include "src/data/samples.h"

namespace annulus {

// Names a skipped sample and the reason.
struct BadSample {
  std::size_t sample;
  std::string reason;  // one line, naming the sample
};

// Holds a rank's share in a step.
struct Batch {
  StepPlan step;
  // Images: size() x height x width x channels; text: size() x (length + 1) tokens, int32. Aligned to cache lines,
  // because the operating system copies from files at half the speed to unaligned memory.
  std::vector<std::uint8_t, CacheLineAllocator<std::uint8_t>> images;
  std::vector<std::int32_t> labels;
  std::vector<float> targets{};            // each sample's, unless labels are classes; else empty
  std::vector<MixedLabel> mixed_labels{};  // each image's, if images are mixed; else empty
  std::vector<std::int32_t> keys{};        // a random number per sample and epoch, for Network::load
  std::vector<BadSample> bad{};            // skipped samples, by number

  std::size_t size() const { return labels.size(); }
  Labels labels_of(const Range& samples) const;  // as a network takes them
};

// Says which batches a rank requests.
struct BatchRequest {
  std::uint64_t seed = 0;
  std::size_t global_batch = 0;
  int rank = 0, ranks = 1;
  Cursor start;
  std::uint64_t end_epoch = UINT64_MAX;  // this epoch and later ones are not read
  // This rank's place among the node's ranks, which share a file cache and thus the hints about what will be read.
  int local_rank = 0, local_size = 1;
  std::size_t shards = 0, unit = 1;  // see StepPlan::share()
  RoundPlan round{};
};

// Reads and prepares this rank's share in every step ahead of time: plan.workers threads read the samples batch by
// batch, and the loader delivers batches in order. Reuses memory for plan.prefetch + 1 batches. The data follows from
// (seed, epoch, sample) alone: it is bit-identical for any number of threads, ranks and prefetched batches.
//
// Bad samples (damaged, wrongly labelled, unreadable) end the run or, with plan.skip_bad, are skipped: in training they
// are replaced by the next good sample, by number; in evaluation the batch is smaller. Both depend on the data only.
//
// If plan.augmentation mixes images, the loader mixes each image with the next image in the epoch's order (the last
// with the first), as read: this, too, depends on neither ranks nor batches.
class Loader {
 public:
  Loader(const Samples& dataset, const InputPlan& plan, const BatchRequest& request);
  ~Loader();

  // Plans the next step: units per rank, the same on all ranks. Called a step ahead, so that samples are read in time.
  // REQUIRES: request.round.planned.
  void plan(std::vector<std::size_t> units);

  // Returns next()'s step plan, perhaps before the samples are read. Throws like next().
  StepPlan next_plan();

  // Waits until next() need not wait. Throws like next().
  void await();

  // Returns the next step's share, valid until the next call. Throws Error if reading failed, then on every further
  // call too, and after the last epoch before request.end_epoch.
  const Batch& next();

  // Returns the batch that next() will return, if it is ready; else null.
  const Batch* peek() const;

  ReadTimes times() const;  // total so far

 private:
  // Holds a batch in preparation. Workers take samples from the first to the last, a few at a time.
  struct Slot {
    Batch batch;
    Range share;  // positions, see StepPlan::share()
    // For each position: the sample, and the key for the sample's random numbers. If images are mixed, includes the
    // position after the share, for the last image.
    std::vector<std::size_t> samples;
    std::vector<std::uint64_t> keys;
    std::size_t taken = 0;  // samples that workers took
    std::size_t done = 0;
    bool ready = false;
    std::exception_ptr failure;

    std::size_t size() const { return samples.size(); }
  };
  struct Portion {
    Slot& slot;
    Range samples;  // in the batch
  };

  void reserve(std::size_t images);  // allocates memory in every slot
  void work(const std::stop_token& stop, std::size_t worker);
  void fill(SampleReader& reader, const Portion& portion, std::vector<BadSample>& bad);
  void choose(const Portion& portion);
  SampleRows rows_of(const Portion& portion) const;
  bool replace(Slot& slot, std::size_t place, std::size_t tried, const Error& error, std::vector<BadSample>& bad) const;
  void give_hints(const SampleOrder& order, std::uint64_t epoch, std::size_t position);
  std::optional<Portion> take(const std::stop_token& stop);

  static bool is_ready(const Slot& slot) { return slot.ready; }

  // REQUIRES: mutex_ is held.
  Slot& newest() { return slots_[(opened_ - 1) % slots_.size()]; }
  bool newest_has_samples() { return !failed_ && opened_ > 0 && newest().taken < newest().size(); }
  bool may_open() const {
    return !failed_ && cursor_.epoch < request_.end_epoch && opened_ - delivered_ < slots_.size() - 1 &&
           (!request_.round.planned || !planned_.empty());
  }
  bool ended() const { return delivered_ == opened_ && cursor_.epoch >= request_.end_epoch; }
  const Slot& await_next(std::unique_lock<std::mutex>& lock, const std::function<bool(const Slot&)>& ready);
  StepPlan plan_next();
  void open_next();
  Portion take_from(Slot& slot) const;
  bool finish(const Portion& portion, std::vector<BadSample>& bad, const std::exception_ptr& failure);
  void complete(SampleReader& reader, Slot& slot);
  void remove_bad(Batch& batch) const;

  const Samples& dataset_;
  const InputPlan plan_;
  const BatchRequest request_;

  // A ring: slot n % slots holds batch number n. Batches in [delivered_, opened_) are ready or in preparation; the
  // caller holds delivered_ - 1.
  std::vector<Slot> slots_;
  mutable std::mutex mutex_;  // guards what follows, and the slots' counts
  std::condition_variable_any changed_;
  Cursor cursor_;                                 // where the next batch opens
  std::deque<std::vector<std::size_t>> planned_;  // units per rank, for the next batches to open
  std::uint64_t opened_ = 0;
  std::uint64_t delivered_ = 0;
  bool failed_ = false;                                          // no further batch is begun
  std::optional<std::pair<std::uint64_t, std::size_t>> hinted_;  // epoch and window
  std::vector<ReadTimes> times_;                                 // per worker

  std::vector<std::jthread> threads_;  // last: they stop before the members they use are destroyed
};

}  // namespace annulus
