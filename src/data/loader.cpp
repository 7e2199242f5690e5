#include "src/data/loader.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/random.h"
#include "src/io/checked_product.h"

namespace annulus {
namespace {

constexpr std::int32_t kNoLabel = -1;        // marks a position in a batch that is to be removed
constexpr std::size_t kPortions = 4;         // per batch and worker, so that workers finish together
constexpr std::size_t kMostBadInARow = 100;  // more than this are not considered isolated

}  // namespace

Labels Batch::labels_of(const Range& samples) const {
  const auto part = [&](const auto& all) {
    const std::size_t each = all.size() / size();
    return std::span(all).subspan(samples.begin * each, samples.size() * each);
  };
  return {part(labels), part(mixed_labels), part(targets)};
}

Loader::Loader(const Samples& dataset, const InputPlan& plan, const BatchRequest& request)
    : dataset_(dataset),
      plan_(plan),
      request_(request),
      slots_(plan.prefetch + 1),  // the caller still holds the last delivered batch
      cursor_(request.start),
      times_(plan.workers) {
  // Rank 0's share of a full step is the largest there is, so nothing is allocated later.
  const StepPlan full{0, {0, std::min(request.global_batch, dataset.info().size)}, false, {}, request.round.piece_size};
  reserve(full.share(0, request.ranks, request.shards, request.unit).size());
  for (std::size_t worker = 0; worker < plan.workers; ++worker)
    threads_.emplace_back([this, worker](const std::stop_token& stop) { work(stop, worker); });
}

Loader::~Loader() {
  for (std::jthread& thread : threads_) thread.request_stop();  // all threads, before joining any
}

void Loader::reserve(std::size_t images) try {
  for (Slot& slot : slots_) {
    const std::size_t positions = images + (plan_.augmentation.mixes() ? 1 : 0);
    slot.batch.images.reserve(checked_product(std::array{positions, plan_.image_bytes()}).value());
    slot.batch.labels.reserve(positions);
    slot.batch.targets.reserve(positions * dataset_.info().targets());
    slot.batch.mixed_labels.reserve(plan_.augmentation.mixes() ? images : 0);
    slot.batch.keys.reserve(positions);
    slot.samples.reserve(positions);
    slot.keys.reserve(positions);
  }
} catch (const std::exception&) {  // exceeds the memory, a vector's limit, or 64 bits
  if (plan_.is_text())
    fail("{} batches of {} windows of {} tokens do not fit into memory: use a smaller --batch, --length or --prefetch",
         slots_.size(), images, plan_.window.length);
  fail("{} batches of {} images of {}x{}x{} do not fit into memory: use a smaller --batch, --image or --prefetch",
       slots_.size(), images, plan_.image.height, plan_.image.width, plan_.channels);
}

void Loader::plan(std::vector<std::size_t> units) {
  const std::lock_guard lock(mutex_);
  planned_.push_back(std::move(units));
  changed_.notify_all();
}

StepPlan Loader::next_plan() {
  std::unique_lock lock(mutex_);
  return await_next(lock, [](const Slot& /*slot*/) { return true; }).batch.step;
}

void Loader::await() {
  std::unique_lock lock(mutex_);
  await_next(lock, is_ready);
}

const Batch& Loader::next() {
  std::unique_lock lock(mutex_);
  const Slot& slot = await_next(lock, is_ready);
  ++delivered_;
  changed_.notify_all();
  return slot.batch;
}

// Waits until the next step's slot is opened, and `ready`.
const Loader::Slot& Loader::await_next(std::unique_lock<std::mutex>& lock,
                                       const std::function<bool(const Slot&)>& ready) {
  const Slot& slot = slots_[delivered_ % slots_.size()];
  changed_.wait(lock, [&] { return ended() || (delivered_ < opened_ && (ready(slot) || slot.failure)); });
  if (ended()) fail("no batches are left: all {} epochs have been read", request_.end_epoch);
  if (slot.failure) std::rethrow_exception(slot.failure);
  return slot;
}

const Batch* Loader::peek() const {
  const std::lock_guard lock(mutex_);
  const Slot& slot = slots_[delivered_ % slots_.size()];
  return delivered_ < opened_ && slot.ready ? &slot.batch : nullptr;
}

ReadTimes Loader::times() const {
  const std::lock_guard lock(mutex_);
  ReadTimes sum;
  for (const ReadTimes& worker : times_) sum += worker;
  return sum;
}

void Loader::work(const std::stop_token& stop, std::size_t worker) try {
  SampleReader reader(dataset_, plan_);
  std::vector<BadSample> bad;
  while (const auto portion = take(stop)) {
    std::exception_ptr failure;
    try {
      fill(reader, *portion, bad);
    } catch (...) {
      failure = std::current_exception();
    }
    const bool all_read = finish(*portion, bad, failure);
    if (all_read) complete(reader, portion->slot);
    bad.clear();
    const std::lock_guard lock(mutex_);
    times_[worker] = reader.times();
    portion->slot.ready |= all_read;
    changed_.notify_all();
  }
} catch (...) {  // std::bad_alloc, for example
  const std::lock_guard lock(mutex_);
  if (delivered_ == opened_) ++opened_;  // a batch that reports the failure
  slots_[delivered_ % slots_.size()].failure = std::current_exception();
  failed_ = true;
  changed_.notify_all();
}

// Waits for work; returns none when the thread is to stop.
std::optional<Loader::Portion> Loader::take(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (changed_.wait(lock, stop, [this] { return newest_has_samples() || may_open(); }) && !stop.stop_requested()) {
    if (newest_has_samples()) return take_from(newest());
    try {
      open_next();
    } catch (...) {
      newest().failure = std::current_exception();
      failed_ = true;
    }
    changed_.notify_all();
  }
  return {};
}

StepPlan Loader::plan_next() {
  if (!request_.round.planned) {
    StepPlan step = plan_step(cursor_, dataset_.info().size, request_.global_batch);
    step.piece_size = request_.round.piece_size;
    return step;
  }
  std::vector<std::size_t> units = std::move(planned_.front());
  planned_.pop_front();
  const std::size_t all = std::accumulate(units.begin(), units.end(), std::size_t{0});
  StepPlan step = plan_step(cursor_, dataset_.info().size, all * request_.unit);
  step.weights = std::move(units);
  return step;
}

void Loader::open_next() {
  Slot& slot = slots_[opened_++ % slots_.size()];
  slot.taken = slot.done = 0;
  const StepPlan step = plan_next();
  cursor_ = after(step);
  slot.share = step.share(request_.rank, request_.ranks, request_.shards, request_.unit);
  slot.batch.step = step;
  const std::size_t positions = slot.share.size() + (plan_.augmentation.mixes() && slot.share.size() > 0 ? 1 : 0);
  slot.batch.images.resize(positions * plan_.image_bytes());
  slot.batch.labels.resize(positions);
  slot.batch.targets.resize(positions * dataset_.info().targets());
  slot.batch.mixed_labels.clear();
  slot.batch.keys.resize(positions);
  slot.samples.resize(positions);
  slot.keys.resize(positions);
  slot.ready = positions == 0;
  slot.batch.bad.clear();
}

Loader::Portion Loader::take_from(Slot& slot) const {
  // A single worker takes a whole batch.
  const std::size_t size = plan_.workers == 1 ? slot.size() : slot.size() / (kPortions * plan_.workers);
  const std::size_t begin = slot.taken;
  slot.taken = std::min(begin + std::max<std::size_t>(size, 1), slot.size());
  return {slot, {begin, slot.taken}};
}

void Loader::fill(SampleReader& reader, const Portion& portion, std::vector<BadSample>& bad) {
  choose(portion);
  const SampleRows rows = rows_of(portion);
  reader.read(rows, [&](std::size_t row, std::size_t tried, const Error& error) {
    return replace(portion.slot, portion.samples.begin + row, tried, error, bad);
  });
  std::ranges::transform(rows.keys,
                         portion.slot.batch.keys.begin() + static_cast<std::ptrdiff_t>(portion.samples.begin),
                         [](std::uint64_t key) { return static_cast<std::int32_t>(key); });
}

// Writes the samples of a portion's places, and their keys.
void Loader::choose(const Portion& portion) {
  Slot& slot = portion.slot;
  const StepPlan& step = slot.batch.step;
  const std::size_t size = dataset_.info().size;
  const SampleOrder order(plan_.shuffle, size, request_.seed, step.epoch);
  const auto at = [&](std::size_t place) { return step.position(slot.share, request_.rank, request_.ranks, place); };
  give_hints(order, step.epoch, at(portion.samples.begin));
  for (std::size_t place = portion.samples.begin; place < portion.samples.end; ++place) {
    slot.samples[place] = order.sample(at(place) % size);
    slot.keys[place] = mix(request_.seed, step.epoch, slot.samples[place]);
  }
}

SampleRows Loader::rows_of(const Portion& portion) const {
  const auto part = [places = portion.samples](auto& all, std::size_t each = 1) {
    return std::span(all).subspan(places.begin * each, places.size() * each);
  };
  Slot& slot = portion.slot;
  return {part(slot.samples),
          part(slot.keys),
          part(slot.batch.images, plan_.image_bytes()),
          part(slot.batch.labels),
          part(slot.batch.targets, dataset_.info().targets()),
          request_.seed,
          slot.batch.step.epoch};
}

// Replaces a bad sample by the next sample, by number, which is then to be read. Returns false if the place is removed.
bool Loader::replace(Slot& slot, std::size_t place, std::size_t tried, const Error& error,
                     std::vector<BadSample>& bad) const {
  if (!plan_.skip_bad) fail("{}; use --on-bad-sample skip to continue without it", error.what());
  std::size_t& sample = slot.samples[place];
  // A bad image beyond the share, read only for mixing, is reported by the rank whose share has it.
  if (tried == 0 && place < slot.share.size()) bad.push_back({sample, error.what()});
  if (!plan_.replace_bad) {
    slot.batch.labels[place] = kNoLabel;
    return false;
  }
  if (tried + 1 == kMostBadInARow)
    fail("{}, and the next {} samples are bad too: the cause must be something else",
         bad.empty() ? error.what() : bad.back().reason, tried);
  sample = (sample + 1) % dataset_.info().size;
  slot.keys[place] = mix(request_.seed, slot.batch.step.epoch, sample);
  return true;
}

// With blocks, announces a window's samples to the operating system when the previous window begins, and immediately if
// the window is an epoch's first or the run resumes in it. All ranks read from each block, but a single announcement
// per node is enough: a node's ranks divide the blocks among themselves.
void Loader::give_hints(const SampleOrder& order, std::uint64_t epoch, std::size_t position) {
  const BlockOrder* blocks = order.blocks();
  if (blocks == nullptr) return;
  const std::size_t window = blocks->window_of(position);
  bool is_first = window == 0;
  {
    const std::lock_guard lock(mutex_);
    const std::pair now{epoch, window};
    if (hinted_ && *hinted_ >= now) return;
    is_first = is_first || !hinted_;
    hinted_ = now;
  }
  const std::size_t size = dataset_.info().size;
  const auto ranks = static_cast<std::size_t>(request_.local_size);
  std::size_t turn = static_cast<std::size_t>(request_.local_rank);
  const auto hint = [&](Range block) {
    if (turn++ % ranks != 0) return;
    dataset_.will_need({block.begin % size, std::min(block.begin % size + block.size(), size)});
    if (block.begin % size + block.size() > size) dataset_.will_need({0, block.begin % size + block.size() - size});
  };
  if (is_first) blocks->for_each_block(window, hint);
  if (window + 1 < blocks->windows()) blocks->for_each_block(window + 1, hint);
}

// Returns whether the batch's samples are all read: then the caller completes the batch and marks it as ready.
bool Loader::finish(const Portion& portion, std::vector<BadSample>& bad, const std::exception_ptr& failure) {
  const std::lock_guard lock(mutex_);
  Slot& slot = portion.slot;
  slot.done += portion.samples.size();
  if (failure && !slot.failure) slot.failure = failure;
  failed_ = failed_ || failure;
  std::ranges::move(bad, std::back_inserter(slot.batch.bad));
  return slot.done == slot.size() && !slot.failure;
}

void Loader::complete(SampleReader& reader, Slot& slot) {
  Batch& batch = slot.batch;
  if (plan_.augmentation.mixes()) {
    const std::size_t images = slot.share.size();
    batch.mixed_labels.resize(images);
    reader.mix_neighbours(slot.keys, batch.images, batch.labels, batch.mixed_labels);
    batch.images.resize(images * plan_.image_bytes());
    batch.labels.resize(images);
    batch.keys.resize(images);
  }
  if (!batch.bad.empty()) remove_bad(batch);
}

// Sorts the bad samples, so that the order is independent of threads, and removes the positions left empty.
void Loader::remove_bad(Batch& batch) const {
  std::ranges::sort(batch.bad, {}, &BadSample::sample);
  std::size_t kept = 0;
  const std::size_t bytes = plan_.image_bytes();
  const std::size_t width = dataset_.info().targets();
  const auto image = [&](std::size_t i) { return batch.images.begin() + static_cast<std::ptrdiff_t>(i * bytes); };
  const auto targets = [&](std::size_t i) { return batch.targets.begin() + static_cast<std::ptrdiff_t>(i * width); };
  for (std::size_t i = 0; i < batch.size(); ++i) {
    if (batch.labels[i] == kNoLabel) continue;
    if (kept < i) {
      std::copy(image(i), image(i + 1), image(kept));
      std::copy(targets(i), targets(i + 1), targets(kept));
    }
    batch.labels[kept] = batch.labels[i];
    batch.keys[kept++] = batch.keys[i];
  }
  batch.images.resize(kept * bytes);
  batch.labels.resize(kept);
  batch.targets.resize(kept * width);
  batch.keys.resize(kept);
}

}  // namespace annulus
