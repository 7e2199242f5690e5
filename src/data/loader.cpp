#include "src/data/loader.h"

#include <algorithm>

namespace annulus {

Loader::Loader(const Dataset& dataset, std::uint64_t seed, std::size_t global_batch, int rank, int ranks, Cursor start)
    : dataset_(dataset), seed_(seed), global_batch_(global_batch), rank_(rank), ranks_(ranks), cursor_(start) {
  // Rank 0's share of a full step is the largest there is: afterwards nothing is allocated.
  const StepPlan full{0, {0, std::min(global_batch, dataset.info().size)}, false};
  const std::size_t largest = full.share(0, ranks).size();
  for (Batch& batch : ring_) {
    batch.images.reserve(largest * dataset.info().image_bytes());
    batch.labels.reserve(largest);
  }
  thread_ = std::jthread([this](std::stop_token stop) { read_ahead(stop); });
}

Loader::~Loader() = default;

const Batch& Loader::next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return taken_ < filled_ || failure_; });
  if (taken_ == filled_) std::rethrow_exception(failure_);
  const Batch& batch = ring_[taken_++ % kDepth];
  changed_.notify_all();
  return batch;
}

void Loader::read_ahead(std::stop_token stop) {
  try {
    for (std::uint64_t number = 0;; ++number) {
      {
        // One slot less than there are: the caller still looks at the batch that it took last.
        std::unique_lock lock(mutex_);
        if (!changed_.wait(lock, stop, [&] { return number - taken_ < kDepth - 1; })) return;
      }
      const StepPlan step = plan_step(cursor_, dataset_.info().size, global_batch_);
      fill(ring_[number % kDepth], step);
      cursor_ = after(step);
      const std::lock_guard lock(mutex_);
      filled_ = number + 1;
      changed_.notify_all();
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
    changed_.notify_all();
  }
}

void Loader::fill(Batch& batch, const StepPlan& step) const {
  const std::size_t image_bytes = dataset_.info().image_bytes();
  const EpochOrder order(dataset_.info().size, seed_, step.epoch);
  const Range share = step.share(rank_, ranks_);
  batch.step = step;
  batch.images.resize(share.size() * image_bytes);
  batch.labels.resize(share.size());
  for (std::size_t i = 0; i < share.size(); ++i) {
    const std::size_t sample = order.sample(share.begin + i);
    batch.labels[i] = dataset_.label(sample);
    dataset_.read_image(sample, std::span(batch.images).subspan(i * image_bytes, image_bytes));
  }
}

}  // namespace annulus
