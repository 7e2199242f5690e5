#include "src/scaling/simulated_step.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "kernels/base/error.h"

namespace annulus {
namespace {

class VirtualLane final : public Lane {
 public:
  Mark mark() override { return {now_, 0}; }

  double now() const { return now_; }
  void advance(double seconds) { now_ += seconds; }
  void await(double moment) { now_ = std::max(now_, moment); }

 private:
  double now_ = 0;
};

// Runs all-reduces in sequence, each with the modeled duration.
class VirtualAllReduce final : public AllReduce {
 public:
  VirtualAllReduce(VirtualLane& lane, const AllReduceModel& sum)
      : AllReduce({sum.name, sum.name}), lane_(lane), sum_(sum) {}

  double idle_from() const { return idle_from_; }
  double seconds() const { return seconds_; }  // over all all-reduces so far

  DeviceView allocate(std::size_t, Memory) override { return {}; }
  Ticket enqueue(DeviceView values, const Request&) override {
    const double seconds = sum_.seconds(values.bytes);
    seconds_ += seconds;
    ends_.push_back(idle_from_ = std::max(idle_from_, lane_.now()) + seconds);
    return ends_.size();
  }
  void wait(Ticket ticket) override { lane_.await(ends_[ticket - 1]); }

 private:
  VirtualLane& lane_;
  const AllReduceModel& sum_;
  double idle_from_ = 0, seconds_ = 0;
  std::vector<double> ends_;
};

// Each layer's position among the gradients in the arena, in floats, in the order of backward: from the last layer.
struct Arena {
  explicit Arena(const StepProfile& profile) : layers(profile.layers.size()) {
    std::size_t end = 0;
    for (std::size_t i = layers.size(); i-- > 0;) {
      layers[i].begin = end;
      for (const std::size_t parameter : profile.layers[i].gradient_bytes)
        ends.push_back(end += parameter / sizeof(float));
      layers[i].end = end;
    }
    bytes = end * sizeof(float);
  }

  // Returns the position of a shared embedding's table: the first final gradient in that size.
  Range table(const StepProfile& profile) const {
    if (!profile.embedding) return {};
    const std::size_t lines =
        (profile.embedding->vocabulary * profile.embedding->row_bytes + kCacheLine - 1) / kCacheLine;
    const std::size_t size = lines * kCacheLine / sizeof(float);
    std::size_t begin = 0;
    for (const std::size_t end : ends) {
      if (end - begin == size) return {begin, end};
      begin = end;
    }
    fail("the profile of {} has no gradient of {} rows of {} bytes, as its embedding", profile.model,
         profile.embedding->vocabulary, profile.embedding->row_bytes);
  }

  std::vector<Range> layers;
  std::vector<std::size_t> ends;  // the parameters'
  std::size_t bytes;
};

StepProfile beside_others(StepProfile profile, double contention) {
  profile.input_seconds *= contention;
  profile.optimizer_seconds *= contention;
  for (LayerProfile& layer : profile.layers) layer.scale(contention);
  if (profile.embedding) {
    profile.embedding->own_seconds *= contention;
    profile.embedding->row_seconds *= contention;
  }
  return profile;
}

// Returns how long the slowest of these ranks computes, relative to the mean rank.
double slowest_of(std::size_t ranks, double mean_delay) {
  double longer = 1;
  for (std::size_t rank = 2; rank <= ranks; ++rank) longer += mean_delay / static_cast<double>(rank);
  return longer;
}

class Simulation {
 public:
  Simulation(const StepProfile& profile, const AllReduceModel& sum, const BucketOptions& options,
             const Interference& interference)
      : profile_(beside_others(profile, sum.ranks > 1 ? interference.contention : 1)),
        ranks_(sum.ranks),
        slow_down_(interference.slow_down),
        slowest_(slowest_of(sum.ranks, interference.waiting)),
        arena_(profile),
        table_(arena_.table(profile)),
        memory_(std::make_unique_for_overwrite<std::byte[]>(arena_.bytes)),
        all_reduce_(lane_, sum),
        buckets_(plan(options)) {}

  // Follows SynchronousStep::run().
  SimulatedStep step() {
    found_ = {.input = profile_.input_seconds, .buckets = buckets_.size()};
    const double begun = lane_.now(), communicated = all_reduce_.seconds();
    lane_.advance(profile_.input_seconds);
    if (profile_.embedding) tokens_ = enqueue(profile_.embedding->vocabulary * sizeof(float));
    forward();
    backward();
    if (profile_.embedding) send_rows(*profile_.embedding);
    buckets_.send_deferred();
    finish_undeferred();
    found_.step = lane_.now() - begun;
    found_.waiting = found_.compute - found_.compute / slowest_;
    found_.compute -= found_.waiting;
    found_.communication = all_reduce_.seconds() - communicated;
    return found_;
  }

 private:
  GradientBuckets plan(const BucketOptions& options) {
    std::vector<Range> ranges =
        cut_buckets(arena_.ends, options.bytes > 0 ? options.bytes : default_bucket_bytes(arena_.bytes));
    const Range deferred = deferred_buckets(ranges, table_.end, options.deferred);
    return {lane_, {memory_.get(), arena_.bytes}, std::move(ranges), all_reduce_, deferred};
  }

  void forward() {
    for (std::size_t layer = 0; layer < profile_.layers.size(); ++layer) {
      // Finishes the deferred buckets that contain gradients of this layer or of earlier layers.
      while (pending_.size() > 0 && buckets_.range(pending_.end - 1).end > arena_.layers[layer].begin)
        finish(--pending_.end);
      compute(profile_.layers[layer].forward_seconds);
    }
  }

  void backward() {
    buckets_.begin_step();
    for (std::size_t number = profile_.layers.size(); number-- > 0;) {
      const LayerProfile& layer = profile_.layers[number];
      double computed = 0;
      for (const LayerProfile::Early& part : layer.early) {
        compute(part.seconds - std::exchange(computed, part.seconds));
        buckets_.ready(arena_.layers[number].begin + part.gradient_bytes / sizeof(float));
      }
      compute(layer.backward_seconds - computed);
      buckets_.ready(arena_.layers[number].end);
    }
  }

  // No all-reduce starts during a computation, so it is known at the beginning for how long all-reduces slow it down.
  void compute(double mean_seconds) {
    const double seconds = mean_seconds * slowest_;
    const double busy = std::max(0.0, all_reduce_.idle_from() - lane_.now());
    const double slowed = seconds * slow_down_;
    const double took = slowed <= busy ? slowed : busy + seconds - busy / slow_down_;
    lane_.advance(took);
    found_.compute += took;
  }

  void finish(std::size_t bucket) {
    wait(bucket);
    update(bucket);
  }

  void wait(std::size_t bucket) {
    expose([&] { buckets_.join(bucket); });
  }

  template <class Wait>
  void expose(const Wait& wait) {
    const double begun = lane_.now();
    wait();
    found_.exposed += lane_.now() - begun;
  }

  void update(std::size_t bucket) {
    const double seconds = profile_.optimizer_seconds *
                           static_cast<double>(buckets_.range(bucket).size() * sizeof(float)) /
                           static_cast<double>(arena_.bytes);
    lane_.advance(seconds);
    found_.optimizer += seconds;
  }

  bool held_back(std::size_t bucket) const {
    return buckets_.range(bucket).begin < table_.end && table_.begin < buckets_.range(bucket).end;
  }

  void finish_undeferred() {
    for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
      if (buckets_.is_deferred(bucket)) continue;
      wait(bucket);
      if (!held_back(bucket)) update(bucket);
    }
    if (profile_.embedding) add_rows(*profile_.embedding);
    for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket)
      if (held_back(bucket)) update(bucket);
    pending_ = buckets_.deferred();
  }

  void send_rows(const EmbeddingProfile& embedding) {
    expose([&] { all_reduce_.wait(tokens_); });
    exchange(embedding.own_seconds);
    rows_ = enqueue(rows(embedding) * embedding.row_bytes);
  }

  void add_rows(const EmbeddingProfile& embedding) {
    expose([&] { all_reduce_.wait(rows_); });
    exchange(static_cast<double>(rows(embedding)) * embedding.row_seconds);
  }

  void exchange(double seconds) {
    lane_.advance(seconds);
    found_.embedding += seconds;
  }

  std::size_t rows(const EmbeddingProfile& embedding) const {
    const double different = embedding.different_tokens(ranks_ * profile_.batch * profile_.length);
    return static_cast<std::size_t>(std::llround(different));
  }

  AllReduce::Ticket enqueue(std::size_t bytes) {
    return all_reduce_.enqueue({nullptr, bytes}, {.bucket = AllReduce::kWithinPass});
  }

  const StepProfile profile_;
  const std::size_t ranks_;
  const double slow_down_;
  const double slowest_;  // computing on this rank, relative to the mean rank's
  const Arena arena_;
  const Range table_;                          // in floats; empty if no embedding is shared
  const std::unique_ptr<std::byte[]> memory_;  // never touched, so it takes no physical memory
  VirtualLane lane_;
  VirtualAllReduce all_reduce_;
  GradientBuckets buckets_;
  Range pending_;                            // the previous step's unfinished deferred buckets
  AllReduce::Ticket tokens_ = 0, rows_ = 0;  // a shared embedding's
  SimulatedStep found_;
};

}  // namespace

SimulatedStep simulate_step(const StepProfile& profile, const AllReduceModel& sum, const BucketOptions& buckets,
                            const Interference& interference) {
  Simulation simulation(profile, sum, buckets, interference);
  simulation.step();  // all steps after this step are identical
  return simulation.step();
}

}  // namespace annulus
