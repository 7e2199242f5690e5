#include "src/scaling/simulated_step.h"

#include <algorithm>
#include <cmath>
#include <memory>

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

// Runs all-reduces one after the other, each with its modeled duration.
class VirtualAllReduce final : public AllReduce {
 public:
  VirtualAllReduce(VirtualLane& lane, const AllReduceModel& sum)
      : AllReduce({sum.name, sum.name}), lane_(lane), sum_(sum) {}

  double idle_from() const { return idle_from_; }
  double seconds() const { return seconds_; }  // of all all-reduces so far

  DeviceView allocate(std::size_t) override { return {}; }
  Ticket enqueue(DeviceView values, Next, std::size_t) override {
    const double seconds = sum_.seconds(values.bytes);
    seconds_ += seconds;
    ends_.push_back(idle_from_ = std::max(idle_from_, lane_.now()) + seconds);
    return ends_.size();
  }
  void wait(Ticket ticket) override { lane_.await(ends_[ticket - 1]); }
  const AllReduceProgress& progress() const override { return progress_; }

 private:
  VirtualLane& lane_;
  const AllReduceModel& sum_;
  double idle_from_ = 0, seconds_ = 0;
  std::vector<double> ends_;
  AllReduceProgress progress_;
};

// The position of each layer's gradients in the arena, in floats, in the order of backward: from the last layer.
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

  std::vector<Range> layers;
  std::vector<std::size_t> ends;  // of the parameters
  std::size_t bytes;
};

class Simulation {
 public:
  Simulation(const StepProfile& profile, const AllReduceModel& sum, const BucketOptions& options, double slow_down)
      : profile_(profile),
        ranks_(sum.ranks),
        slow_down_(slow_down),
        arena_(profile),
        memory_(std::make_unique_for_overwrite<std::byte[]>(arena_.bytes)),
        all_reduce_(lane_, sum),
        buckets_(plan(options)) {}

  // Follows Trainer::step().
  SimulatedStep step() {
    found_ = {.input = profile_.input_seconds, .buckets = buckets_.size()};
    const double begun = lane_.now(), communicated = all_reduce_.seconds();
    lane_.advance(profile_.input_seconds);
    forward();
    backward();
    if (profile_.embedding) {
      update_together(*profile_.embedding);
    } else {
      for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket)
        if (bucket == 0 || bucket > buckets_.deferred()) finish(bucket);
      pending_ = buckets_.deferred();
    }
    found_.step = lane_.now() - begun;
    found_.communication = all_reduce_.seconds() - communicated;
    return found_;
  }

 private:
  GradientBuckets plan(const BucketOptions& options) {
    if (profile_.embedding && options.deferred > 0)
      fail(
          "--defer cannot be used with {}, whose embedding is also its head: it needs all gradients before the first "
          "update",
          profile_.model);
    std::vector<Range> ranges =
        cut_buckets(arena_.ends, options.bytes > 0 ? options.bytes : default_bucket_bytes(arena_.bytes));
    const std::size_t deferred = count_deferred(ranges, options.deferred);
    return {lane_, {memory_.get(), arena_.bytes}, std::move(ranges), all_reduce_, deferred};
  }

  void forward() {
    for (std::size_t layer = 0; layer < profile_.layers.size(); ++layer) {
      // The deferred buckets that contain gradients of this layer or of earlier ones.
      for (; pending_ > 0 && buckets_.range(pending_).end > arena_.layers[layer].begin; --pending_) finish(pending_);
      compute(profile_.layers[layer].forward_seconds);
    }
  }

  void backward() {
    buckets_.begin_step();
    for (std::size_t layer = profile_.layers.size(); layer-- > 0;) {
      compute(profile_.layers[layer].backward_seconds);
      buckets_.ready(arena_.layers[layer].end);
    }
  }

  // No all-reduce starts during a computation, so the time for which they slow it down is known at its beginning.
  void compute(double seconds) {
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
    const double begun = lane_.now();
    buckets_.join(bucket);
    found_.exposed += lane_.now() - begun;
  }

  void update(std::size_t bucket) {
    const double seconds = profile_.optimizer_seconds *
                           static_cast<double>(buckets_.range(bucket).size() * sizeof(float)) /
                           static_cast<double>(arena_.bytes);
    lane_.advance(seconds);
    found_.optimizer += seconds;
  }

  // Follows Trainer::update_together().
  void update_together(const EmbeddingProfile& embedding) {
    for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) wait(bucket);
    exchange(embedding);
    for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) update(bucket);
  }

  // Follows EmbeddingExchange::add_all(): all-reduces the marks of the global batch's tokens, then their rows.
  void exchange(const EmbeddingProfile& embedding) {
    const double different = embedding.different_tokens(ranks_ * profile_.batch * profile_.length);
    const auto rows = static_cast<std::size_t>(std::llround(different));
    found_.embedding = embedding.own_seconds + static_cast<double>(rows) * embedding.row_seconds;
    lane_.advance(found_.embedding);
    all_reduce_now(embedding.vocabulary * sizeof(float));
    all_reduce_now(rows * embedding.row_bytes);
  }

  void all_reduce_now(std::size_t bytes) {
    const double begun = lane_.now();
    all_reduce_.wait(all_reduce_.enqueue({nullptr, bytes}, AllReduce::Next::wait, AllReduce::kWithinPass));
    found_.exposed += lane_.now() - begun;
  }

  const StepProfile& profile_;
  const std::size_t ranks_;
  const double slow_down_;
  const Arena arena_;
  const std::unique_ptr<std::byte[]> memory_;  // never touched, so it takes no physical memory
  VirtualLane lane_;
  VirtualAllReduce all_reduce_;
  GradientBuckets buckets_;
  std::size_t pending_ = 0;  // unfinished deferred buckets of the previous step
  SimulatedStep found_;
};

}  // namespace

SimulatedStep simulate_step(const StepProfile& profile, const AllReduceModel& sum, const BucketOptions& buckets,
                            double slow_down) {
  Simulation simulation(profile, sum, buckets, slow_down);
  simulation.step();  // all steps after this one are identical
  return simulation.step();
}

}  // namespace annulus
