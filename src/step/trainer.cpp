#include "src/step/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/base/error.h"
#include "kernels/base/lane_span.h"
#include "kernels/base/subnormals.h"
#include "src/io/bytes.h"

namespace annulus {
namespace {

// The last of the slots, at the begin of the arena, from which a step reads its metrics.
const Parameter& last_slot(const Parameters& parameters) {
  return parameters.metrics() != nullptr ? *parameters.metrics() : parameters.steering();
}

// The first bucket holds all metrics: a step reads them from it before it updates anything. `apart`: nothing else.
std::vector<Range> plan_buckets(const Parameters& parameters, std::size_t bucket_bytes, bool apart) {
  const Parameter& last = last_slot(parameters);
  const std::size_t metrics = last.offset + last.bytes, begin = apart ? metrics / sizeof(float) : 0;
  std::vector<std::size_t> ends;
  for (const Parameter& p : parameters.updated())
    if (const std::size_t end = (p.offset + p.bytes) / sizeof(float); end > begin) ends.push_back(end - begin);
  std::vector<Range> buckets = cut_buckets(ends, std::max(bucket_bytes, metrics));
  for (Range& bucket : buckets) bucket = {begin + bucket.begin, begin + bucket.end};
  if (apart) buckets.insert(buckets.begin(), {0, begin});
  return buckets;
}

BucketOptions resolve(BucketOptions options, const Parameters& parameters) {
  if (options.bytes == 0) options.bytes = default_bucket_bytes(parameters.gradients().bytes);
  return options;
}

// Returns the option that requires all all-reduces of a step before its first update; empty if buckets are updated one
// by one.
std::string_view waits_for_all(Model& model, const Optimizer& optimizer, const StepOptions& options) {
  if (options.strategy == "local" || options.strategy == "async") return "";  // a part's update does not wait
  if (model.device().loss_scaling() != nullptr) return "--precision fp16";
  if (options.strategy == "sharded" && optimizer.needs_whole_parameters())
    return "--optimizer lars and --strategy sharded";
  return options.clip_norm > 0 ? "--clip-norm" : "";
}

std::optional<EmbeddingExchange> make_exchange(Model& model, AllReduce& all_reduce, const StepOptions& options) {
  const auto& gradient = model.embedding_gradient();
  if (!gradient) return std::nullopt;
  const TokenShape& tokens = model.graph().tokens();
  return std::make_optional<EmbeddingExchange>(model.device(), all_reduce, tokens.vocabulary, gradient->width,
                                               options.global_batch * tokens.length);
}

// Returns the position of a shared embedding's gradient, in floats; empty if none is shared. Forward needs it first, so
// it is never deferred.
Range table_of(const Model& model) {
  const auto table = find_tied_embedding(model.graph());
  for (const Parameter& p : model.parameters().all())
    if (p.name == table && p.role != Role::frozen)
      return {p.offset / sizeof(float), (p.offset + p.bytes) / sizeof(float)};
  return {};
}

GradientBuckets make_buckets(Model& model, const BucketOptions& options, AllReduce& all_reduce, const Range& table,
                             std::string_view wants_all, Strategy& strategy) {
  const Parameters& parameters = model.parameters();
  std::vector<Range> plan = plan_buckets(parameters, options.bytes, bool(strategy.differences()));
  if (const DeviceView differences = strategy.differences()) {
    return {model.device(), differences, std::move(plan), all_reduce};
  }
  const Range deferred = deferred_buckets(plan, table.end, options.deferred);
  if (options.deferred > 0 && !wants_all.empty())
    fail("--defer cannot be used with {}, which needs all gradients before the first update", wants_all);
  Network::Stops stops;
  for (std::size_t bucket = 0; bucket < plan.size(); ++bucket) {
    if (strategy.scatters() || (deferred.begin <= bucket && bucket < deferred.end))
      stops.forward.push_back(plan[bucket].end);
    stops.backward.push_back(plan[bucket].end);
  }
  model.stop_at(stops);
  return {model.device(), parameters.gradients(), std::move(plan), all_reduce, deferred, strategy.scatters()};
}

// Returns the largest number of a step's earlier sums.
std::size_t kept_at_once(const TreeOrder& order) {
  std::size_t height = 0, most = 0;
  for (std::size_t part = 0; part + 1 < order.joins.size(); ++part) {
    height = height + 1 - order.joins[part];
    most = std::max(most, height);
  }
  return most;
}

}  // namespace

std::string to_string(const BucketOptions& buckets) {
  return format_bytes(buckets.bytes) +
         (buckets.deferred > 0 ? fmt::format(", {:.0f} % deferred", 100 * buckets.deferred) : "");
}

Parameters::Allocate allocate_in(AllReduce& all_reduce) {
  return [&all_reduce](std::size_t bytes) { return all_reduce.allocate(bytes); };
}

Parameters::Allocate allocate_weights(const std::string& strategy, AllReduce& all_reduce) {
  if (strategy != "sharded") return {};
  return [&all_reduce](std::size_t bytes) { return all_reduce.allocate(bytes, Memory::common); };
}

Trainer::Trainer(Model& model, AllReduce& all_reduce, Optimizer& optimizer, Ledger& ledger,
                 const BucketOptions& buckets, Activity& activity, TraceLane* lane, const StepOptions& options)
    : model_(model),
      device_(model.device()),
      all_reduce_(all_reduce),
      optimizer_(optimizer),
      ledger_(ledger),
      lane_(lane),
      options_(options),
      activity_(activity),
      embedding_(make_exchange(model, all_reduce, options)),
      table_(table_of(model)),
      part_norms_(optimizer),
      bucket_options_(resolve(buckets, model.parameters())),
      strategy_(make_strategy(options.strategy, model, all_reduce, optimizer, options.round)),
      buckets_(make_buckets(model, bucket_options_, all_reduce, table_, waits_for_all(model, optimizer, options),
                            *strategy_)) {
  plan_strategy();
  expect_flushed_subnormals();
  allocate_kept();
  const Parameter& last = last_slot(model_.parameters());
  slots_.resize(last.offset + last.bytes);
  if (strategy_->has_rounds()) round_metrics_ = device_.allocate(metrics_slot(exchanged()).bytes);
  if (options_.pipeline != nullptr) link_stages();
  activity_.plan(buckets_.size());
  model_.sum_over_ranks([this](DeviceView values) {
    const AllReduce::Ticket ticket =
        all_reduce_.enqueue(values, {.next = AllReduce::Next::wait, .bucket = AllReduce::kWithinPass});
    const Timestamps::Part part = wait_for_ranks([&] { all_reduce_.join(ticket); });
    timestamps_.finishing.push_back(part);
  });
}

void Trainer::link_stages() {
  using enum PipelineLink::Neighbour;
  PipelineLink& link = *options_.pipeline;
  const auto receive = [this, &link](PipelineLink::Neighbour from, const char* name) {
    return [this, &link, from, name](DeviceView to) {
      exchange(Activity::Phase::waiting_for_stage, name, [&] { link.receive(to, from); });
    };
  };
  const auto send = [&link](PipelineLink::Neighbour to) {
    return [&link, to](DeviceView from) { link.send(from, to); };
  };
  StageLinks links;
  if (link.stage() > 0) {
    links.receive_input = receive(previous, "wait for previous stage");
    links.send_input_gradient = send(previous);
  }
  if (link.stage() + 1 < link.stages()) {
    links.send_output = send(next);
    links.receive_output_gradient = receive(next, "wait for next stage");
  }
  model_.link(links);
  optimizer_.include([this](double squares) { return sum_squares(squares); });
}

// Returns the sum of the squares of all stages' gradients, given that of this stage's. An embedding that the first
// stage shares with the last one counts once.
double Trainer::sum_squares(double squares) {
  if (shares_across_stages() && options_.stage() == 0) {
    optimizer_.add_squares(table_);
    squares -= optimizer_.take_squares();
  }
  std::array sum{squares};
  exchange(Activity::Phase::waiting_for_stage, "wait for the stages' norms", [&] { options_.pipeline->sum(sum); });
  return sum[0];
}

// Adds up a float of each stage, in place.
void Trainer::sum_over_stages(DeviceView value) {
  float own = 0;
  device_.download(value, std::as_writable_bytes(std::span(&own, 1)));
  std::array sum{double{own}};
  exchange(Activity::Phase::waiting_for_stage, "wait for the stages' flags", [&] { options_.pipeline->sum(sum); });
  own = static_cast<float>(sum[0]);
  device_.upload(std::as_bytes(std::span(&own, 1)), value);
}

void Trainer::allocate_kept() {
  const DeviceView gradients = model_.parameters().gradients();
  std::size_t height = options_.parts > 1 ? 1 : 0, subtrees = 1;
  if (options_.shards > 0) {
    order_ = tree_order(options_.rank, options_.ranks, options_.shards);
    subtrees = order_.sums.size();
    height = kept_at_once(order_);
  }
  kept_.clear();
  for (std::size_t number = 0, own = 0; number < height; ++number)
    if (number + 1 < subtrees) {
      kept_.push_back(all_reduce_.addend(gradients, number));
    } else {
      if (own == kept_memory_.size()) kept_memory_.push_back(device_.allocate(gradients.bytes));
      kept_.push_back(kept_memory_[own++].view());
    }
}

void Trainer::continue_with(const StepOptions& options) {
  options_ = options;
  allocate_kept();
  strategy_->continue_with(options.round);
  buckets_ = make_buckets(model_, bucket_options_, all_reduce_, table_, waits_for_all(model_, optimizer_, options_),
                          *strategy_);
  plan_strategy();
  activity_.plan(buckets_.size());
  pending_ = {};
  computing_ = updating_ = false;
  for (StepTimestamps* timestamps : {&timestamps_, &last_timestamps_}) *timestamps = {};
}

bool Trainer::updates_together() const {
  return !waits_for_all(model_, optimizer_, options_).empty();
}

void Trainer::plan_strategy() {
  strategy_->plan(buckets_, [this](DeviceView values) { sum_norms(values); });
}

StepMetrics Trainer::step(const Batch& batch, const ControlFlags& flags, const Mark& begun) {
  StepMetrics metrics;
  // A long round has more marks than are kept.
  const auto kept = [&](const Mark& mark) { return strategy_->has_rounds() ? device_.timed(mark) : mark; };
  timestamps_.begun = kept(begun);
  {
    const LaneSpan span(device_, lane_, "step", TraceLane::kNone, timestamps_.begun);
    {
      const LaneSpan input(device_, lane_, "wait for images", TraceLane::kNone, timestamps_.begun);
      load(batch, 0);
    }
    timestamps_.loaded = kept(device_.mark());
    timestamps_.steps = steps_of(batch);
    compute(batch, flags);
    timestamps_.computed = device_.mark();
    prefetch_next();

    wait_for_metrics(batch, flags);
    record_times(last_timestamps_);
    metrics = read_metrics();
    expect_finite(metrics);
    if (metrics.control_flags.copy > 0) before_update_();
    updating_ = true;
    if (sends_differences())
      send_differences(batch);
    else if (!strategy_->has_rounds())
      optimizer_.begin_step();  // a round has counted its steps
    finish_undeferred();
    updating_ = false;
    timestamps_.open = true;
    timestamps_.ended = device_.mark();
  }
  if (lane_ != nullptr) timestamps_.spans = lane_->spans().size();
  std::swap(timestamps_, last_timestamps_);
  // The step is complete, or it was a round, after which a GPU may have nothing to do for a moment.
  if (device_.info().shares_host_memory || strategy_->has_rounds()) record_times(last_timestamps_);
  return metrics;
}

void Trainer::finish() {
  const Mark begun = device_.mark();
  finish_from(0);
  if (sends_differences()) {
    const LaneSpan span(device_, lane_, "wait for weights");
    wait_for_ranks([&] { strategy_->finish(); });
  }
  const Mark ended = device_.mark();
  device_.finish();
  record_times(last_timestamps_);
  if (lane_ != nullptr) timestamps_.spans = lane_->spans().size();
  record_times(timestamps_);
  ledger_.add_between_steps(device_.seconds(ended) - device_.seconds(begun));
}

// Books a step's times in the ledger. Outside of a step there are only waits and updates.
void Trainer::record_times(StepTimestamps& timestamps) {
  book(timestamps, timestamps);
  const double finishing = std::exchange(timestamps.finishing_seconds, 0.0);
  const double neighbours = std::exchange(timestamps.neighbours_seconds, 0.0);
  if (timestamps.open) {
    const double begun = device_.seconds(timestamps.begun), loaded = device_.seconds(timestamps.loaded),
                 computed = device_.seconds(timestamps.computed);
    own_seconds_ = computed - begun - neighbours;
    ledger_.add(StepTimes::input, loaded - begun);
    ledger_.add(StepTimes::compute, computed - loaded - finishing);
    const bool alone = options_.pipeline != nullptr && options_.ranks == 1;  // the only rank with its stage
    if (all_reduce_.info().reduces && !alone) ledger_.add_arrival(computed);
    ledger_.end_step(device_.seconds(timestamps.ended) - begun, timestamps.steps);
  }
  timestamps.open = false;
}

// Books times that are not a whole step's.
void Trainer::book(Timestamps& timestamps, StepTimestamps& step) {
  for (const Timestamps::Part& part : timestamps.finishing) step.finishing_seconds += seconds(part);
  for (const GradientBuckets::Times& wait : timestamps.waits)
    ledger_.add_wait(device_.seconds(wait.ready), device_.seconds(wait.wait_begin), device_.seconds(wait.wait_end));
  for (const Timestamps::Part& part : timestamps.neighbours) {
    ledger_.add(StepTimes::waiting_for_slower_ranks, seconds(part));
    step.neighbours_seconds += seconds(part);
  }
  for (const Timestamps::Part& part : timestamps.transfers)
    ledger_.add(StepTimes::exposed_communication, seconds(part));
  for (const Timestamps::Part& part : timestamps.updates) ledger_.add(StepTimes::optimizer, seconds(part));
  for (const Timestamps::Part& part : timestamps.norms) ledger_.add(StepTimes::optimizer, -seconds(part));
  if (lane_ != nullptr) resolve(device_, *lane_, timestamps.spans);
  timestamps.finishing.clear();
  timestamps.waits.clear();
  timestamps.transfers.clear();
  timestamps.updates.clear();
  timestamps.norms.clear();
  timestamps.neighbours.clear();
}

void Trainer::finish_undeferred() {
  for (std::size_t bucket = 0; bucket < sent_buckets(); ++bucket) {
    if (buckets_.is_deferred(bucket)) continue;
    if (bucket > 0) wait(bucket);
    if (!held_back(bucket)) update(bucket);
  }
  if (exchanges()) wait_for_ranks([&] { all_reduce_.join(rows_); });
  use_all_gradients();
  for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket)
    if (!buckets_.is_deferred(bucket) && held_back(bucket)) update(bucket);
  LossScaling* const scaling = device_.loss_scaling();
  if (scaling != nullptr && updates_together()) scaling->conclude();
  pending_ = buckets_.deferred();
  if (strategy_->scatters()) send_weights();
}

// Sends the updated weights in the order in which the next forward needs them, and waits for an embedding that is also
// the head, which it needs first. The others are pending.
void Trainer::send_weights() {
  std::size_t first = 0;
  for (; first < buckets_.size() && buckets_.range(first).begin < table_.end; ++first) strategy_->send_weights(first);
  for (std::size_t bucket = buckets_.size(); bucket-- > first;)
    if (!buckets_.is_deferred(bucket)) strategy_->send_weights(bucket);
  for (std::size_t bucket = 0; bucket < first; ++bucket) await_weights(bucket);
  pending_ = {first, buckets_.size()};
}

// Returns whether a bucket is updated only after use_all_gradients().
bool Trainer::held_back(std::size_t bucket) const {
  const Range range = buckets_.range(bucket);
  return updates_together() || strategy_->has_common_weights() ||
         (range.begin < table_.end && table_.begin < range.end);
}

// What must be done between the last all-reduce and the updates that are held back.
void Trainer::use_all_gradients() {
  if (shares_across_stages()) {
    const LaneSpan span(device_, lane_, "add the embedding's gradients");
    const DeviceView table =
        model_.parameters().gradients().slice(table_.begin * sizeof(float), table_.size() * sizeof(float));
    wait_for_ranks([&] { options_.pipeline->add_other_end(table); });
  }
  if (!exchanges() && !updates_together()) return;
  activity_.enter(Activity::Phase::optimizer);
  const Mark begun = device_.mark();
  // Adds the rows of all ranks to a shared embedding's gradient, which has been all-reduced without them.
  if (exchanges()) embedding_->add_rows(model_.embedding_gradient()->table);
  // A single gradient that overflows, in any bucket, forbids all updates.
  // (If they are reduce-scattered, a rank has its chunks of their sums, and parts of the others'.)
  if (LossScaling* scaling = device_.loss_scaling()) {
    scaling->judge(model_.parameters().gradients());
    if (optimizer_.sharded()) scaling->agree([this](DeviceView ranks) { sum_norms(ranks); });
    if (options_.pipeline != nullptr) scaling->agree([this](DeviceView stages) { sum_over_stages(stages); });
  }
  if (options_.clip_norm > 0) optimizer_.clip(options_.clip_norm);
  if (optimizer_.sharded() && optimizer_.needs_whole_parameters()) optimizer_.measure_parameters();
  timestamps_.updates.push_back({begun, device_.mark()});
}

// Between steps, when metrics are logged, nothing is booked.
void Trainer::sum_norms(DeviceView values) {
  const AllReduce::Ticket ticket =
      all_reduce_.enqueue(values, {.exact = true, .next = AllReduce::Next::wait, .bucket = AllReduce::kWithinPass});
  if (updating_)
    timestamps_.norms.push_back(wait_for_ranks([&] { all_reduce_.join(ticket); }));
  else
    all_reduce_.join(ticket);
}

void Trainer::await_weights(std::size_t bucket) {
  const LaneSpan span(device_, lane_, "wait for weights of bucket", static_cast<std::int64_t>(bucket + 1));
  wait_for_ranks([&] { strategy_->await_weights(bucket); });
}

// Returns the samples of a part, as a range of the batch.
Range Trainer::part(const Batch& batch, std::size_t number) const {
  return options_.part(batch.step.global_batch(), batch.size(), number);
}

// Returns the images or windows of a part.
std::span<const std::uint8_t> Trainer::part_of(const Batch& batch, std::size_t number) const {
  const Range samples = part(batch, number);
  const std::size_t bytes = batch.size() == 0 ? 0 : batch.images.size() / batch.size();
  return std::span(batch.images).subspan(samples.begin * bytes, samples.size() * bytes);
}

void Trainer::load(const Batch& batch, std::size_t number) {
  const Range samples = part(batch, number);
  if (samples.size() == 0) return;
  network(batch, number)
      .load(part_of(batch, number), batch.labels_of(samples),
            std::span(batch.keys).subspan(samples.begin, samples.size()));
}

// Of the first part only: the others' copies overlap with the computation of earlier ones anyway.
void Trainer::prefetch_next() {
  if (const Batch* next = peek_next_()) device_.prefetch(std::as_bytes(part_of(*next, 0)));
}

// Returns the network that computes a part. Its activations are kept until its backward pass.
Network& Trainer::network(const Batch& batch, std::size_t number) {
  return model_.network(Mode::training, part(batch, number).size(), options_.slot(batch.size(), number));
}

// Returns the windows of the last part, of which backward leaves out the embedding's gradient; none for an empty share.
std::span<const std::int32_t> Trainer::last_windows(const Batch& batch) const {
  return batch.size() == 0 ? std::span<const std::int32_t>{}
                           : windows_in(part_of(batch, options_.parts_of(batch.size()) - 1));
}

// Computes the gradients of this rank's share, whose first part is already loaded, and sends them bucket by bucket as
// they become final.
void Trainer::compute(const Batch& batch, const ControlFlags& flags) {
  if (strategy_->has_rounds()) return compute_round(batch, flags);
  part_norms_.begin_step(batch.step.global_batch());
  AllReduce::Ticket tokens = 0;
  if (exchanges()) tokens = embedding_->send_tokens(last_windows(batch), model_.graph().tokens().length);
  computing_ = true;
  compute_parts(batch, flags);
  computing_ = false;
  if (exchanges()) send_rows(batch, tokens);
  buckets_.send_deferred();
}

void Trainer::compute_parts(const Batch& batch, const ControlFlags& flags) {
  const std::size_t parts = options_.parts_of(batch.size());
  kept_now_ = 0;
  if (parts > 1 && options_.shards == 0) device_.zero(kept_[kept_now_++]);
  for (const PipelinePass pass : pipeline_schedule(options_.stage(), options_.stages(), parts)) {
    if (pass.kind == PipelinePass::Kind::forward) {
      if (pass.part > 0) load(batch, pass.part);
      forward(batch, pass.part);
    } else {
      if (pass.part + 1 < parts)
        keep(batch, pass.part);
      else
        send_last(batch, flags);
      part_norms_.end_part(part(batch, pass.part).size());
    }
  }
}

// Runs the backward pass of the last part, and sends the gradients of all.
void Trainer::send_last(const Batch& batch, const ControlFlags& flags) {
  const std::size_t last = options_.parts_of(batch.size()) - 1;
  begin_backward(flags);
  joins_ = joins(batch, last);
  not_added_ = model_.parameters().steering().bytes;
  const auto ready = [this](std::size_t gradients) { send(gradients); };
  if (options_.shards > 0)
    backward_with_embedding(batch, last, ready);
  else
    backward(batch, last, ready);
}

void Trainer::begin_round(const StepPlan& round) {
  updating_ = strategy_->has_rounds();
  before_round_ = optimizer_.step();  // now, because another thread may make updates from here on
  strategy_->begin_round(round);
}

// Computes this rank's share of a round, each part with the weights that the strategy has for it, and sends the
// metrics.
void Trainer::compute_round(const Batch& batch, const ControlFlags& flags) {
  const DeviceView metrics = metrics_slot(model_.parameters().gradients());
  Timestamps last_part;
  device_.zero(round_metrics_.view());
  computing_ = true;
  std::size_t number = 0;
  for (; part(batch, number).size() > 0; ++number) {
    if (number > 0) {
      before_part_(number);
      load(batch, number);
    }
    wait_within_round([&] { strategy_->await_part(number); });
    work_within_round(Activity::Phase::waiting_for_steps, timestamps_.transfers,
                      [&] { strategy_->begin_part(number); });
    if (const auto steps = strategy_->staleness()) ledger_.add_staleness(*steps);
    forward(batch, number);
    backward_with_embedding(batch, number, [this](std::size_t) { activity_.tick(); });
    device_.add_scaled(metrics, weight_of(mean_over(batch, number), batch), round_metrics_.view());
    // If no differences are sent after the round, the part's gradients are sent now.
    work_within_round(Activity::Phase::optimizer, sends_differences() ? timestamps_.updates : timestamps_.transfers,
                      [&] { strategy_->end_part(number, options_.clip_norm); });
    // Waits for the part before this one, so that a GPU always has work, but no more than that of a part.
    if (lane_ != nullptr) timestamps_.spans = lane_->spans().size();
    book(last_part, timestamps_);
    std::swap(last_part, static_cast<Timestamps&>(timestamps_));
  }
  wait_within_round([&] { strategy_->await_part(number); });
  if (!sends_differences())
    work_within_round(Activity::Phase::waiting_for_steps, timestamps_.transfers,
                      [&] { strategy_->end_round(weight_of(batch.size(), batch)); });
  computing_ = updating_ = false;
  optimizer_.set_step(before_round_ + timestamps_.steps);
  send_metrics(flags);
  book(last_part, timestamps_);
}

// Sends a round's metrics. Their bucket may hold gradients, too, which nobody reads.
void Trainer::send_metrics(const ControlFlags& flags) {
  if (!sends_differences()) device_.zero(exchanged().slice(0, buckets_.range(0).end * sizeof(float)));
  device_.copy(round_metrics_.view(), metrics_slot(exchanged()));
  begin_backward(flags);
  buckets_.ready(buckets_.range(0).end);
}

// If ranks were lost in a round that all others have completed, these send their metrics again.
void Trainer::wait_for_metrics(const Batch& batch, const ControlFlags& flags) {
  double share = 1;  // of the round's samples, by the ranks that are left
  while (true) try {
      return wait(0);  // it holds the metrics
    } catch (const Error&) {
      if (!regroup_()) throw;
      const double before = share;
      share = weight_of(batch.size(), batch);
      options_.round.world->sum({&share, 1});
      if (share > 0) device_.scale(round_metrics_.view(), static_cast<float>(before / share), round_metrics_.view());
      send_metrics(flags);
    }
}

void Trainer::send_differences(const Batch& batch) {
  activity_.enter(Activity::Phase::optimizer);
  const Mark begun = device_.mark();
  strategy_->end_round(weight_of(batch.size(), batch));
  timestamps_.updates.push_back({begun, device_.mark()});
  buckets_.ready(exchanged().bytes / sizeof(float));
}

void Trainer::wait_within_round(const std::function<void()>& wait) {
  exchange(Activity::Phase::waiting_for_steps, "wait for steps", wait);
}

// Books work as one of these parts of the step, which are transfers or updates.
void Trainer::work_within_round(Activity::Phase phase, std::vector<Timestamps::Part>& parts,
                                const std::function<void()>& work) {
  activity_.enter(phase);
  const Mark begun = device_.mark();
  work();
  parts.push_back({begun, device_.mark()});
  timestamps_.finishing.push_back(parts.back());
}

// The weight of some samples in the mean over a step.
float Trainer::weight_of(std::size_t samples, const Batch& batch) {
  return static_cast<float>(samples) / static_cast<float>(batch.step.global_batch());
}

// The number of samples of which a part's gradients become the mean.
std::size_t Trainer::mean_over(const Batch& batch, std::size_t number) const {
  return strategy_->has_rounds() ? strategy_->mean_over(number, part(batch, number).size()) : batch.step.global_batch();
}

// A round counts as the number of full steps that its samples would take.
std::size_t Trainer::steps_of(const Batch& batch) const {
  return strategy_->has_rounds() ? (batch.step.global_batch() + options_.global_batch - 1) / options_.global_batch : 1;
}

void Trainer::forward(const Batch& batch, std::size_t number) {
  const std::size_t samples = part(batch, number).size();
  if (samples == 0) return finish_from(0);
  activity_.enter(Activity::Phase::forward);
  network(batch, number).forward([this](std::size_t parameters) {
    tick();
    finish_from(parameters);
  });
}

// Runs the backward pass of a part; an empty one has zeros as its gradients.
void Trainer::backward(const Batch& batch, std::size_t number, const Network::Ready& ready) {
  const DeviceView gradients = model_.parameters().gradients();
  const std::size_t samples = part(batch, number).size();
  activity_.enter(Activity::Phase::backward);
  if (samples == 0) {
    device_.zero(written(gradients));
    ready(gradients.bytes / sizeof(float));
  } else {
    network(batch, number).backward(1.0f / static_cast<float>(mean_over(batch, number)), ready);
  }
}

// The same, with the part of a shared embedding's gradient that a network's backward leaves out.
void Trainer::backward_with_embedding(const Batch& batch, std::size_t number, const Network::Ready& ready) {
  if (!embedding_) return backward(batch, number, ready);
  backward(batch, number, [this](std::size_t) { tick(); });
  if (const std::size_t samples = part(batch, number).size(); samples > 0)
    embedding_->add_own(windows_in(part_of(batch, number)), model_.graph().tokens().length,
                        *network(batch, number).embedding_gradient());
  ready(model_.parameters().gradients().bytes / sizeof(float));
}

// Keeps the gradients of a part that is not the last; the all-reduces wait for the last part's.
void Trainer::keep(const Batch& batch, std::size_t number) {
  backward_with_embedding(batch, number, [this](std::size_t gradients) {
    tick();
    part_norms_.ready(gradients);
  });
  const DeviceView gradients = written(model_.parameters().gradients());
  std::size_t left = joins(batch, number);
  for (; left > 1; --left) device_.add(written(kept_[--kept_now_]), gradients, DataType::f32);
  if (left == 1)
    device_.add(gradients, written(kept_[kept_now_ - 1]), DataType::f32);
  else  // adding to zeros would turn -0 to 0
    device_.copy(gradients, written(kept_[kept_now_++]));
}

// The number of gradients on the stack to which a part's are added.
std::size_t Trainer::joins(const Batch& batch, std::size_t number) const {
  return options_.shards > 0 ? order_.joins[number] : options_.parts_of(batch.size()) > 1 ? 1 : 0;
}

DeviceView Trainer::written(DeviceView gradients) const {
  const std::size_t steering = model_.parameters().steering().bytes;
  return gradients.slice(steering, gradients.bytes - steering);
}

// The first `count` gradients of the last part are final: adds those of the earlier parts and sends them.
void Trainer::send(std::size_t count) {
  tick();
  part_norms_.ready(count);
  const std::size_t end = count * sizeof(float);
  if (end > not_added_) {
    const std::size_t bytes = end - not_added_;
    for (std::size_t join = 1; join <= joins_; ++join)
      device_.add(kept_[kept_now_ - join].slice(not_added_, bytes),
                  model_.parameters().gradients().slice(not_added_, bytes), DataType::f32);
    not_added_ = end;
  }
  buckets_.ready(count);
}

// From now on gradients are overwritten.
void Trainer::begin_backward(ControlFlags flags) {
  flags.diverged = optimizer_.diverged() ? 1.0f : 0.0f;
  const Parameters& parameters = model_.parameters();
  static_assert(sizeof flags == Parameters::kSteering * sizeof(float));
  model_.device().upload(std::as_bytes(std::span(&flags, 1)),
                         exchanged().slice(parameters.steering().offset, sizeof flags));
  buckets_.begin_step();
}

// Sends the rows of a shared embedding's gradient when backward has ended, before deferred buckets.
void Trainer::send_rows(const Batch& batch, AllReduce::Ticket tokens) {
  const Timestamps::Part waited = wait_for_ranks([&] { all_reduce_.wait(tokens); });
  timestamps_.finishing.push_back(waited);
  Network::EmbeddingGradient gradient = *model_.embedding_gradient();  // for an empty share, without rows
  if (batch.size() > 0) {
    gradient = *network(batch, options_.parts_of(batch.size()) - 1).embedding_gradient();
  }
  rows_ = embedding_->send_rows(last_windows(batch), model_.graph().tokens().length, gradient);
}

// A layer was computed.
void Trainer::tick() {
  activity_.tick();
  if (options_.pipeline != nullptr) options_.pipeline->progress();
}

// Waits for a neighbour in the pipeline, or for other ranks within a round.
void Trainer::exchange(Activity::Phase phase, const char* name, const std::function<void()>& wait) {
  const Activity::Phase before = activity_.snapshot().phase;
  activity_.enter(phase);
  const LaneSpan span(device_, computing_ ? lane_ : nullptr, name);
  const Mark begun = device_.mark();
  wait();
  activity_.enter(before);
  if (!computing_) return;
  const Timestamps::Part waited{begun, device_.mark()};
  timestamps_.neighbours.push_back(waited);
  timestamps_.finishing.push_back(waited);
}

template <class Wait>
Trainer::Timestamps::Part Trainer::wait_for_ranks(const Wait& wait) {
  const Activity::Phase before = activity_.snapshot().phase;
  activity_.enter(Activity::Phase::waiting_within_pass);
  const Mark begun = device_.mark();
  wait();
  const Mark ended = device_.mark();
  activity_.enter(before);
  if (all_reduce_.info().reduces) timestamps_.waits.push_back({begun, begun, ended});
  return {begun, ended};
}

void Trainer::finish_from(std::size_t parameters) {
  const auto needed = [&] { return pending_.size() > 0 && buckets_.range(pending_.end - 1).end > parameters; };
  if (!needed()) return;
  const Mark begun = device_.mark();
  while (needed()) finish(--pending_.end);
  activity_.enter(Activity::Phase::forward);
  timestamps_.finishing.push_back({begun, device_.mark()});
}

void Trainer::finish(std::size_t bucket) {
  if (buckets_.is_deferred(bucket)) {
    wait(bucket);
    update(bucket);
    strategy_->send_weights(bucket);
  }
  if (strategy_->scatters()) await_weights(bucket);
}

// Waits for the first bucket until this thread can read the step's metrics; for the others until the lane can continue.
void Trainer::wait(std::size_t bucket) {
  activity_.enter(Activity::Phase::waiting_for_bucket, bucket);
  const LaneSpan span(device_, lane_, "wait for bucket", static_cast<std::int64_t>(bucket + 1));
  if (bucket == 0)
    buckets_.wait(bucket);
  else
    buckets_.join(bucket);
  if (!all_reduce_.info().reduces) return;
  // Even with zero-cost communication the step must wait for the slowest rank's last gradient, here or at a later
  // bucket. (For a deferred bucket: the last gradient of the step that sent it.)
  GradientBuckets::Times times = buckets_.times(bucket);
  if (!sends_differences()) times.ready = buckets_.times(sent_buckets() - 1).ready;
  timestamps_.waits.push_back(times);
}

// An update that needs nothing but its bucket's gradients runs beside the rest of backward, and the lane waits for it.
// Nothing that is then still on the lane reads its weights: a bucket is sent when the backward passes of all its layers
// are done, a layer's weights are read in its own passes only, and buckets with a table that two layers share are held
// back.
void Trainer::update(std::size_t bucket) {
  activity_.enter(Activity::Phase::optimizer, bucket);
  const Mark begun = device_.mark();
  const LaneSpan span(device_, lane_, "update of bucket", static_cast<std::int64_t>(bucket + 1), begun);
  if (held_back(bucket))
    strategy_->update(bucket);
  else
    device_.run_beside([&] {
      buckets_.join_beside(bucket);
      strategy_->update(bucket);
    });
  timestamps_.updates.push_back({begun, device_.mark()});
}

// The arena whose buckets are all-reduced.
DeviceView Trainer::exchanged() const {
  return sends_differences() ? strategy_->differences() : model_.parameters().gradients();
}

DeviceView Trainer::metrics_slot(DeviceView arena) const {
  const Parameter& metrics = *model_.parameters().metrics();
  return arena.slice(metrics.offset, metrics.bytes);
}

StepMetrics Trainer::read_metrics() {
  const Parameters& parameters = model_.parameters();
  device_.peek(exchanged().slice(0, slots_.size()), slots_);
  ControlFlags flags;
  std::memcpy(&flags, slots_.data() + parameters.steering().offset, sizeof flags);
  Metrics means{};  // zeros if another stage of a pipeline has them
  if (const Parameter* metrics = parameters.metrics())
    std::memcpy(&means, slots_.data() + metrics->offset, sizeof means);
  if (options_.pipeline == nullptr) return {means[0], means[1], timestamps_.steps, flags};
  std::array<double, 8> sums{means[0],         means[1],   flags.stop,    flags.evaluate,
                             flags.checkpoint, flags.copy, flags.skipped, flags.diverged};
  const Mark begun = device_.mark();
  options_.pipeline->sum(sums);
  timestamps_.neighbours.push_back({begun, device_.mark()});
  return {sums[0],
          sums[1],
          timestamps_.steps,
          {static_cast<float>(sums[2]), static_cast<float>(sums[3]), static_cast<float>(sums[4]),
           static_cast<float>(sums[5]), static_cast<float>(sums[6]), static_cast<float>(sums[7])}};
}

void Trainer::expect_finite(const StepMetrics& metrics) const {
  if (std::isfinite(metrics.loss)) {
    if (metrics.control_flags.diverged > 0)
      fail("an earlier update made parameters that are not finite: training has diverged; lower --lr");
    return;
  }
  if (optimizer_.step() == 0)
    fail(
        "the loss is {} before the first update: the initial weights and these samples lead to it, whatever --lr is; "
        "look for values that are not finite or too large",
        metrics.loss);
  fail("the loss is {}: training has diverged; lower --lr", metrics.loss);
}

}  // namespace annulus
