#include <algorithm>
#include <future>
#include <memory>
#include <optional>
#include <utility>

#include "collectives/parameter_server.h"
#include "kernels/base/allowed_resources.h"
#include "kernels/base/exact_sum.h"
#include "kernels/base/host_memory.h"
#include "kernels/base/split.h"
#include "kernels/cpu/flat.h"
#include "kernels/cpu/threads.h"
#include "src/step/look_ahead.h"
#include "src/step/round_steps.h"
#include "src/step/strategy.h"

namespace annulus {
namespace {

constexpr std::size_t kPredicted = 2;  // steps that weights are predicted ahead

// The device on which owners update if ranks compute on GPUs.
std::unique_ptr<Device> make_host(const RoundOptions& options) {
  const int processors = allowed_processors().count;
  return make_device("cpu", std::clamp(processors / options.world->local_size(), 1, options.threads));
}

// During a round this rank's thread is the worker: for each part of its share it pulls the weights and pushes
// gradients. Another thread is the owner of this rank's chunks: it updates them in every step of the round. Ranks that
// only serve have no parts, and the others no chunks then, so that they can be lost during a round: the owners go on
// without their gradients.
//
// A rank may compute on a GPU. Then its weights and gradients are copied through pinned memory; all else is the host's.
class Async final : public Strategy {
 public:
  Async(Model& model, AllReduce& all_reduce, Optimizer& optimizer, const RoundOptions& options)
      : parameters_(model.parameters()),
        device_(model.device()),
        host_of_gpu_(device_.info().shares_host_memory ? nullptr : make_host(options)),
        host_(host_of_gpu_ ? *host_of_gpu_ : device_),
        all_reduce_(all_reduce),
        optimizer_(optimizer),
        options_(options),
        weights_(host_.allocate(parameters_.gradients().bytes)),
        sums_(host_.allocate(parameters_.gradients().bytes)),
        pinned_(host_of_gpu_ ? device_.allocate_pinned(parameters_.gradients().bytes) : Buffer{}),
        digits_(all_reduce.allocate(ExactSum::kDigits * sizeof(float))) {}

  ~Async() override { stop(); }

  bool scatters() const override { return false; }
  bool has_rounds() const override { return true; }

  void plan(const GradientBuckets& buckets, const SumOverRanks& sum) override {
    const std::vector<Range> chunks = own_chunks(buckets);
    if (options_.staleness > 0)
      look_ahead_.emplace(host_, floats(weights_.view()).size(), chunks, optimizer_.momentum(), kPredicted);
    const auto sum_digits = [this, sum](DeviceView digits) {
      device_.upload(std::as_bytes(floats(digits)), digits_);
      sum(digits_);
      device_.download(digits_, std::as_writable_bytes(floats(digits)));
    };
    optimizer_.keep(chunks, sum_digits, host_, {weights_.view(), sums_.view(), {}, {}});
    // When a part begins, the contributions to at most `staleness` + 1 steps are not used yet: a part that takes
    // several steps may be due in the one in which the next part begins. Its own is added to them.
    server_ = make_parameter_server(*options_.world, chunks, floats(sums_.view()).size(), options_.staleness + 2);
  }

  void continue_with(const RoundOptions& round) override {
    stop();
    server_->withdraw();
    options_ = round;
    done_ = 0;
  }

  void begin_round(const StepPlan& round) override {
    const std::size_t steps = (round.global_batch() + options_.global_batch - 1) / options_.global_batch;
    round_.emplace(round, options_.ranks, options_.batch, steps);
    options_.world->begin_round(optimizer_.step(), static_cast<int>(options_.servers > 0 ? options_.ranks : 0));
    if (!serves()) return;
    if (done_ == 0) publish_initial();
    owner_ = std::async(std::launch::async, [this, threads = cpu::threads()] {
      cpu::compute_with(threads);
      update_own_chunks();
    });
  }

  void await_part(std::size_t number) override {
    const bool drains = number == parts().size();
    server_->await_steps(drains ? done_ + round_->size() : earliest(done_ + parts()[number].first));
  }

  void begin_part(std::size_t number) override { age_ = done_ + parts()[number].due - pull(); }

  std::size_t mean_over(std::size_t number, std::size_t /*samples*/) const override {
    return round_->samples(parts()[number].due);
  }

  void end_part(std::size_t number, float /*clip_norm*/) override {
    const bool overflows = overflowed();
    const std::span<float> gradients = to_host(parameters_.gradients()), contribution = server_->contribution();
    correct(gradients, overflows);
    if (number > 0 && due_together(number - 1, number))
      cpu::add(gradients, contribution);
    else
      cpu::copy(gradients, contribution);
    if (number + 1 == parts().size() || !due_together(number, number + 1)) server_->contribute();
  }

  void end_round(float /*weight*/) override {
    pull();
    if (owner_.valid()) owner_.get();
    done_ += round_->size();
    options_.world->end_round();
  }

  std::optional<std::size_t> staleness() const override { return age_; }

  void update(std::size_t /*bucket*/) override {}

  // The sum of the ranks' chunks, with zeros elsewhere: -0, because 0 + -0 is another number than -0.
  DeviceView gather(DeviceView state) override {
    const DeviceView arena = parameters_.gradients();
    device_.zero(arena);
    device_.scale(arena, -1, arena);
    optimizer_.read(state, arena);
    all_reduce_.join(all_reduce_.enqueue(arena, {.next = AllReduce::Next::wait}));
    return arena;
  }

 private:
  // Ends a round that was interrupted.
  void stop() {
    if (!owner_.valid()) return;
    server_->abandon();
    owner_.wait();
    owner_ = {};
  }

  bool serves() const { return options_.servers == 0 || rank() >= options_.ranks; }
  std::size_t rank() const { return static_cast<std::size_t>(options_.world->rank()); }

  // Returns this rank's chunk of every bucket. If all ranks serve, the chunks are those of the ring.
  std::vector<Range> own_chunks(const GradientBuckets& buckets) const {
    const bool all_serve = options_.servers == 0;
    std::vector<Range> chunks;
    for (std::size_t bucket = 0; bucket < buckets.size(); ++bucket) {
      const Range whole = buckets.range(bucket);
      Range part{};
      if (serves())
        part = split_blocks(whole.size(), kCacheLine / sizeof(float), all_serve ? options_.ranks : options_.servers,
                            all_serve ? rank() : rank() - options_.ranks);
      chunks.push_back({whole.begin + part.begin, whole.begin + part.end});
    }
    return chunks;
  }

  std::span<const RoundSteps::Part> parts() const { return round_->parts(rank()); }
  bool due_together(std::size_t a, std::size_t b) const { return parts()[a].due == parts()[b].due; }

  // What owners update of an arena, and host memory for it.
  DeviceView served(DeviceView arena) const { return arena.slice(0, sums_.view().bytes); }
  DeviceView on_host(DeviceView arena) const { return host_of_gpu_ ? pinned_.view() : served(arena); }

  // Returns what owners update of an arena, in the host's memory, until the next call or pull().
  std::span<float> to_host(DeviceView arena) {
    device_.copy(served(arena), on_host(arena));
    device_.finish();
    return floats(on_host(arena));
  }

  // Gets the newest weights. Returns the step that they are of. REQUIRES: those of the last call are on the device.
  std::uint64_t pull() {
    const DeviceView weights = served(parameters_.weights()), pulled = on_host(weights);
    const std::uint64_t step = server_->pull(floats(pulled));
    device_.copy(pulled, weights);
    parameters_.weights_changed({0, floats(pulled).size()});
    return step;
  }

  // Returns the earliest step whose weights may be used after `steps` steps.
  std::uint64_t earliest(std::uint64_t steps) const {
    return steps - std::min<std::uint64_t>(steps, options_.staleness);
  }

  void publish_initial() {
    cpu::copy(to_host(parameters_.weights()), floats(weights_.view()));
    server_->publish(0, floats(weights_.view()));
  }

  // Returns whether the gradients of this part overflow, and adapts this rank's scale of the loss.
  bool overflowed() {
    LossScaling* const scaling = device_.loss_scaling();
    if (scaling == nullptr) return false;
    float overflows = 0;
    scaling->judge(parameters_.gradients());
    scaling->agree([&](DeviceView ranks) {  // this one alone
      device_.download(ranks, std::as_writable_bytes(std::span(&overflows, 1)));
    });
    scaling->conclude();
    return overflows > 0;
  }

  // Divides the trained parameters' gradients by their age beyond the prediction, and leaves statistics. Gradients that
  // overflow become zeros.
  void correct(std::span<float> gradients, bool overflow) const {
    if (!overflow && age_ <= kPredicted + 1) return;
    for (const Parameter& p : parameters_.updated())
      if (p.trained()) {
        const auto gradient = gradients.subspan(p.offset / sizeof(float), p.bytes / sizeof(float));
        if (overflow)
          std::ranges::fill(gradient, 0.0f);
        else
          cpu::scale(gradient, 1 / static_cast<float>(age_ - kPredicted), gradient);
      }
  }

  // Sums in the order in which the ring does, from this rank on, so that the bits are the same.
  void update_own_chunks() {
    for (std::size_t step = 0; step < round_->size(); ++step) {
      bool first = true;
      for (std::size_t turn = 0; turn < options_.ranks; ++turn) {
        const std::size_t rank = (this->rank() + turn) % options_.ranks;
        if (!round_->contributes(rank, step)) continue;
        const std::span<const float> contribution = server_->await_contribution(rank);
        if (!contribution.empty()) add(contribution, std::exchange(first, false));
      }
      if (first) std::ranges::fill(floats(sums_.view()), 0.0f);  // all that contribute to this step were lost
      const std::span<const float> weights = floats(weights_.view());
      const bool last = step + 1 == round_->size();
      const bool predicts = look_ahead_ && !last;  // ranks end a round, and begin the next one, with the weights
      if (predicts) look_ahead_->remember(weights);
      optimizer_.begin_step();
      for (const Range& range : server_->own()) optimizer_.update(range);
      server_->publish(done_ + step + 1, predicts ? look_ahead_->predict(weights) : weights);
    }
    server_->serve(done_ + round_->size());
  }

  void add(std::span<const float> contribution, bool first) {
    for (const Range& range : server_->own()) {
      const auto from = contribution.subspan(range.begin, range.size());
      const auto to = floats(sums_.view()).subspan(range.begin, range.size());
      if (first)
        cpu::copy(from, to);
      else
        cpu::add(from, to);
    }
  }

  Parameters& parameters_;
  Device& device_;
  const std::unique_ptr<Device> host_of_gpu_;  // null if the device is the host
  Device& host_;
  AllReduce& all_reduce_;
  Optimizer& optimizer_;
  RoundOptions options_;
  Buffer weights_, sums_;    // this rank's chunks are used: their weights, and the sum of a step's gradients
  const Buffer pinned_;      // see on_host(); empty if the device is the host
  const DeviceView digits_;  // of a norm, in the all-reduce's memory
  std::unique_ptr<ParameterServer> server_;
  std::optional<LookAhead> look_ahead_;  // none without staleness
  std::optional<RoundSteps> round_;
  std::uint64_t done_ = 0;   // steps before this round, since the last plan()
  std::size_t age_ = 0;      // see staleness()
  std::future<void> owner_;  // last: it ends before the members that it uses
};

}  // namespace

std::unique_ptr<Strategy> make_async_strategy(Model& model, AllReduce& all_reduce, Optimizer& optimizer,
                                              const RoundOptions& options) {
  return std::make_unique<Async>(model, all_reduce, optimizer, options);
}

}  // namespace annulus
