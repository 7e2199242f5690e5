#include "src/step/async_step.h"

#include <algorithm>
#include <utility>

#include "kernels/base/allowed_resources.h"
#include "kernels/base/error.h"
#include "kernels/base/exact_sum.h"
#include "kernels/base/host_memory.h"
#include "kernels/base/split.h"
#include "kernels/cpu/loops/elementwise.h"
#include "kernels/cpu/loops/threads.h"
#include "src/step/bucket_plan.h"

namespace annulus {
namespace {

constexpr std::size_t kPredicted = 2;  // steps that weights are predicted ahead

// The device on which owners update if ranks compute on GPUs.
std::unique_ptr<Device> make_host(const AsyncRounds& options) {
  const int processors = allowed_processors().count;
  return make_device("cpu", std::clamp(processors / options.world->local_size(), 1, options.threads));
}

// Only the first bucket is sent, for the metrics; owners have chunks of all.
GradientBuckets cut_for_owners(const StepTools& tools, const BucketOptions& options) {
  const Parameters& parameters = tools.model.parameters();
  return {tools.model.device(), parameters.gradients(),
          plan_buckets(parameters, options, tools.all_reduce, MetricsSlots(tools.model).bytes(), false),
          tools.all_reduce};
}

}  // namespace

AsyncStep::AsyncStep(const StepTools& tools, const BucketOptions& buckets, const StepOptions& options)
    : RoundStep(tools, cut_for_owners(tools, buckets), tools.model.parameters().gradients(), options,
                std::get<AsyncRounds>(options.strategy).round, false),
      bucket_options_(buckets),
      async_(std::get<AsyncRounds>(options.strategy)),
      host_of_gpu_(device_.info().shares_host_memory ? nullptr : make_host(async_)),
      host_(host_of_gpu_ ? *host_of_gpu_ : device_),
      weights_(host_.allocate(parameters().gradients().bytes)),
      sums_(host_.allocate(parameters().gradients().bytes)),
      pinned_(host_of_gpu_ ? device_.allocate_pinned(parameters().gradients().bytes) : Buffer{}),
      digits_(tools.all_reduce.allocate(ExactSum::kDigits * sizeof(float))) {
  plan();
}

void AsyncStep::plan() {
  const std::vector<Range> chunks = own_chunks();
  if (async_.staleness > 0)
    look_ahead_.emplace(host_, floats(weights_.view()).size(), chunks, tools_.optimizer.momentum(), kPredicted);
  const auto sum_digits = [this](DeviceView digits) {
    AllReduce& all_reduce = tools_.all_reduce;
    device_.upload(std::as_bytes(floats(digits)), digits_);
    all_reduce.join(
        all_reduce.enqueue(digits_, {.exact = true, .next = AllReduce::Next::wait, .bucket = AllReduce::kWithinPass}));
    device_.download(digits_, std::as_writable_bytes(floats(digits)));
  };
  tools_.optimizer.keep(chunks, sum_digits, host_, {weights_.view(), sums_.view(), {}, {}});
  // When a part begins, the contributions to at most `staleness` + 1 steps are not used yet: a part that takes
  // several steps may be due in the step in which the next part begins; they are added to that step's.
  server_ = make_parameter_server(*async_.world, chunks, floats(sums_.view()).size(), async_.staleness + 2);
}

void AsyncStep::continue_with(const StepOptions& options) {
  stop();
  server_->withdraw();
  async_ = std::get<AsyncRounds>(options.strategy);
  continue_round(options, async_.round);
  buckets_ = cut_for_owners(tools_, bucket_options_);
  done_ = 0;
  plan();
}

// Ends a round that was interrupted.
void AsyncStep::stop() {
  if (!owner_.valid()) return;
  server_->abandon();
  owner_.wait();
  owner_ = {};
}

void AsyncStep::expect(const StepPlan& next) {
  RoundStep::expect(next);
  const std::size_t steps = (next.global_batch() + options().global_batch - 1) / options().global_batch;
  const std::size_t ranks = async_.round.ranks;
  round_.emplace(next, ranks, async_.round.batch, steps);
  async_.world->begin_section(tools_.optimizer.step(), static_cast<int>(async_.servers > 0 ? ranks : 0));
  if (!serves()) return;
  if (done_ == 0) publish_initial();
  owner_ = std::async(std::launch::async, [this, threads = cpu::threads()] {
    cpu::compute_with(threads);
    update_own_chunks();
  });
}

void AsyncStep::begin_part(std::size_t number) {
  await_steps(earliest(done_ + parts()[number].first));
  clock_.work(Activity::Phase::waiting_for_steps, StepClock::Kind::transfers,
              [&] { age_ = done_ + parts()[number].due - pull(); });
  tools_.ledger.add_staleness(age_);
}

void AsyncStep::await_steps(std::uint64_t steps) {
  clock_.wait(Activity::Phase::waiting_for_steps, "wait for steps", [&] { server_->await_steps(steps); });
}

void AsyncStep::end_part(std::size_t number) {
  clock_.work(Activity::Phase::optimizer, StepClock::Kind::transfers, [&] { push(number); });
}

void AsyncStep::push(std::size_t number) {
  const bool overflows = overflowed();
  const std::span<float> gradients = to_host(parameters().gradients()), contribution = server_->contribution();
  correct(gradients, overflows);
  if (number > 0 && due_together(number - 1, number))
    cpu::add(gradients, contribution);
  else
    cpu::copy(gradients, contribution);
  if (number + 1 == parts().size() || !due_together(number, number + 1)) server_->contribute();
}

void AsyncStep::end_round() {
  await_steps(done_ + round_->size());
  clock_.work(Activity::Phase::waiting_for_steps, StepClock::Kind::transfers, [&] {
    pull();
    if (owner_.valid()) owner_.get();
    done_ += round_->size();
    async_.world->end_section();
  });
}

// If ranks were lost in a round that all other ranks have completed, these ranks send metrics again.
void AsyncStep::wait_for_metrics() {
  double left = 1;  // of the round's samples, the share of the ranks that are left
  while (true) try {
      return RoundStep::wait_for_metrics();
    } catch (const Error&) {
      if (!hooks.regroup()) throw;
      const double before = left;
      left = share();
      async_.world->sum({&left, 1});
      if (left > 0) device_.scale(metrics_.view(), static_cast<float>(before / left), metrics_.view());
      send_metrics();
    }
}

// Zeros elsewhere than in the ranks' chunks are -0, because 0 + -0 is another number than -0.
DeviceView AsyncStep::gather(DeviceView state) {
  const DeviceView arena = parameters().gradients();
  device_.zero(arena);
  device_.scale(arena, -1, arena);
  tools_.optimizer.read(state, arena);
  tools_.all_reduce.join(tools_.all_reduce.enqueue(arena, {.next = AllReduce::Next::wait}));
  return arena;
}

// Returns this rank's chunk of every bucket. If all ranks serve, they are the ring's chunks.
std::vector<Range> AsyncStep::own_chunks() const {
  const bool all_serve = async_.servers == 0;
  std::vector<Range> chunks;
  for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    const Range whole = buckets_.range(bucket);
    Range part{};
    if (serves())
      part = split_blocks(whole.size(), kCacheLine / sizeof(float), all_serve ? async_.round.ranks : async_.servers,
                          all_serve ? rank() : rank() - async_.round.ranks);
    chunks.push_back({whole.begin + part.begin, whole.begin + part.end});
  }
  return chunks;
}

// Returns what owners update of an arena, in the host's memory, until the next call or pull().
std::span<float> AsyncStep::to_host(DeviceView arena) {
  device_.copy(served(arena), on_host(arena));
  device_.finish();
  return floats(on_host(arena));
}

// Gets the newest weights. Returns the step that made them. REQUIRES: the last call's are on the device.
std::uint64_t AsyncStep::pull() {
  const DeviceView weights = served(parameters().weights()), pulled = on_host(weights);
  const std::uint64_t step = server_->pull(floats(pulled));
  device_.copy(pulled, weights);
  parameters().weights_changed({0, floats(pulled).size()});
  return step;
}

void AsyncStep::publish_initial() {
  cpu::copy(to_host(parameters().weights()), floats(weights_.view()));
  server_->publish(0, floats(weights_.view()));
}

// Returns whether the gradients of this part overflow, and adapts this rank's scale of the loss.
bool AsyncStep::overflowed() {
  LossScaling* const scaling = device_.loss_scaling();
  if (scaling == nullptr) return false;
  float overflows = 0;
  scaling->judge(parameters().gradients());
  scaling->agree([&](DeviceView ranks) {  // this one alone
    device_.download(ranks, std::as_writable_bytes(std::span(&overflows, 1)));
  });
  scaling->conclude();
  return overflows > 0;
}

// Divides the trained parameters' gradients by their age beyond the prediction, and leaves statistics. Gradients that
// overflow become zeros.
void AsyncStep::correct(std::span<float> gradients, bool overflow) const {
  if (!overflow && age_ <= kPredicted + 1) return;
  for (const Parameter& p : parameters().updated())
    if (p.trained()) {
      const auto gradient = gradients.subspan(p.offset / sizeof(float), p.bytes / sizeof(float));
      if (overflow)
        std::ranges::fill(gradient, 0.0f);
      else
        cpu::scale(gradient, 1 / static_cast<float>(age_ - kPredicted), gradient);
    }
}

// Sums in the order in which the ring does, from this rank on, so that the bits are the same.
void AsyncStep::update_own_chunks() {
  Optimizer& optimizer = tools_.optimizer;
  for (std::size_t step = 0; step < round_->size(); ++step) {
    bool first = true;
    for (std::size_t turn = 0; turn < async_.round.ranks; ++turn) {
      const std::size_t from = (rank() + turn) % async_.round.ranks;
      if (!round_->contributes(from, step)) continue;
      const std::span<const float> contribution = server_->await_contribution(from);
      if (!contribution.empty()) add(contribution, std::exchange(first, false));
    }
    if (first) std::ranges::fill(floats(sums_.view()), 0.0f);  // all that contribute to this step were lost
    const std::span<const float> weights = floats(weights_.view());
    const bool last = step + 1 == round_->size();
    const bool predicts = look_ahead_ && !last;  // ranks end a round, and begin the next one, with the weights
    if (predicts) look_ahead_->remember(weights);
    optimizer.begin_step();
    for (const Range& range : server_->own()) optimizer.update(range);
    server_->publish(done_ + step + 1, predicts ? look_ahead_->predict(weights) : weights);
  }
  server_->serve(done_ + round_->size());
}

void AsyncStep::add(std::span<const float> contribution, bool first) {
  for (const Range& range : server_->own()) {
    const auto from = contribution.subspan(range.begin, range.size());
    const auto to = floats(sums_.view()).subspan(range.begin, range.size());
    if (first)
      cpu::copy(from, to);
    else
      cpu::add(from, to);
  }
}

}  // namespace annulus
