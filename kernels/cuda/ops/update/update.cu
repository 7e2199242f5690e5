#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <span>

#include "kernels/cuda/ops/loops/chunks.h"
#include "kernels/cuda/ops/loops/column_sums.h"
#include "kernels/cuda/ops/loops/elementwise.h"
#include "kernels/cuda/ops/loops/limits.h"
#include "kernels/cuda/ops/plan/operations.h"
#include "kernels/cuda/ops/update/gradient_clip.h"
#include "kernels/cuda/ops/update/muon.h"
#include "kernels/divergence.h"

namespace annulus::cuda {
namespace {

constexpr unsigned kThreads = 256;
constexpr std::size_t kSlot = 16;  // floats: a parameter's slot is a multiple

// The parameter to which 16 floats in the arenas belong.
struct Owner {
  std::uint32_t role : 2, segment : 30;
};

template <class T>
struct Arenas {
  float* weights;
  const float* gradients;
  T* copies;                          // null if T is float, because the weights themselves are used
  float *first_state, *second_state;  // from the slice's place on
};

// A weight and the data that a rule reads and changes with it.
struct Element {
  float weight, gradient, first_state, second_state;
};

// A rule's factors for a segment.
struct SegmentFactors {
  float rate, weight_decay;  // the rate's factor, or a statistic's momentum
  std::uint64_t last_step;   // see UpdateFactors
};

// The rules in kernels/update.h.
struct SgdStep {
  static constexpr std::size_t kStates = 1;
  float rate, momentum;
  bool nesterov;

  __device__ float rate_of(std::uint32_t) const { return rate; }
  __device__ void apply(Element& e, std::uint32_t, float rate_, float decay) const {
    const float gradient = e.gradient + decay * e.weight;
    e.first_state = momentum * e.first_state + gradient;
    e.weight -= rate_ * (nesterov ? gradient + momentum * e.first_state : e.first_state);
  }
};

struct LarsStep {
  static constexpr std::size_t kStates = 1;
  float rate, momentum;
  const float* local;  // for each segment

  __device__ float rate_of(std::uint32_t segment) const { return rate * local[segment]; }
  __device__ void apply(Element& e, std::uint32_t, float rate_, float decay) const {
    e.first_state = momentum * e.first_state + rate_ * (e.gradient + decay * e.weight);
    e.weight -= e.first_state;
  }
};

struct AdamWStep {
  static constexpr std::size_t kStates = 2;
  float rate, beta1, beta2, epsilon;
  float correction1, correction2;  // 1 / (1 - beta^step)

  __device__ float rate_of(std::uint32_t) const { return rate; }
  __device__ void apply(Element& e, std::uint32_t, float rate_, float decay) const {
    e.first_state = beta1 * e.first_state + (1 - beta1) * e.gradient;
    e.second_state = beta2 * e.second_state + (1 - beta2) * e.gradient * e.gradient;
    const float mean = e.first_state * correction1, root = sqrtf(e.second_state * correction2);
    e.weight -= rate_ * (mean / (root + epsilon) + decay * e.weight);
  }
};

// Moves a matrix in the direction that is in its second state.
template <class Other>
struct MuonStep {
  static constexpr std::size_t kStates = 2;
  float rate;
  Other other;
  const float* scales;  // for each segment; 0: the other rule's

  __device__ float rate_of(std::uint32_t) const { return rate; }
  __device__ void apply(Element& e, std::uint32_t segment, float rate_, float decay) const {
    const float scale = scales[segment];
    if (scale == 0) return other.apply(e, segment, rate_, decay);
    e.weight -= rate_ * (scale * e.second_state + decay * e.weight);
  }
};

template <class T>
__device__ void store_copies(const Floats<4>& weights, T* to) {
  struct alignas(4 * sizeof(T)) Four {
    T at[4];
  } four;
  for (unsigned k = 0; k < 4; ++k) four.at[k] = static_cast<T>(weights.at[k]);
  *reinterpret_cast<Four*>(to) = four;
}

template <class Step>
__device__ void apply(const Step& step, std::uint32_t segment, const SegmentFactors& factors, Floats<4>& weights,
                      const Floats<4>& gradients, float* first_state, float* second_state) {
  const float rate = factors.rate * step.rate_of(segment), decay = factors.weight_decay;
  auto first = load_floats<4>(first_state);
  Floats<4> second{};
  if constexpr (Step::kStates > 1) second = load_floats<4>(second_state);
  for (unsigned k = 0; k < 4; ++k) {
    Element element{weights.at[k], gradients.at[k], first.at[k], second.at[k]};
    step.apply(element, segment, rate, decay);
    weights.at[k] = element.weight;
    first.at[k] = element.first_state;
    second.at[k] = element.second_state;
  }
  store_floats(first, first_state);
  if constexpr (Step::kStates > 1) store_floats(second, second_state);
}

// Processes 4 floats at a time. Reads and writes each weight and the weight's data once. Sets `diverged` if a written
// weight is not finite. `number`: the step's.
template <class Step, class T>
__global__ void update(Predecessor previous, Step step, Arenas<T> arenas, const Owner* owners,
                       const SegmentFactors* factors, std::uint64_t number, std::size_t begin, std::size_t end,
                       const std::uint32_t* skip, std::uint32_t* diverged) {
  await(previous);
  if (skipped(skip)) return;
  bool finite = true;
  for (std::size_t i = begin + 4 * grid_thread(); i < end; i += 4 * grid_threads()) {
    const Owner owner = owners[i / kSlot];
    if (owner.role == static_cast<std::uint32_t>(Role::metric) || number > factors[owner.segment].last_step) continue;
    auto weights = load_floats<4>(arenas.weights + i);
    const auto gradients = load_floats<4>(arenas.gradients + i);
    if (owner.role == static_cast<std::uint32_t>(Role::statistic))
      for (unsigned k = 0; k < 4; ++k) weights.at[k] += factors[owner.segment].rate * (gradients.at[k] - weights.at[k]);
    else
      apply(step, owner.segment, factors[owner.segment], weights, gradients, arenas.first_state + (i - begin),
            arenas.second_state + (i - begin));
    for (const float weight : weights.at) finite = finite && fabsf(weight) < INFINITY;
    store_floats(weights, arenas.weights + i);
    if (arenas.copies != nullptr) store_copies(weights, arenas.copies + i);
  }
  if (!finite) atomicExch(diverged, 1u);
}

// Moves the average towards the weights, which become the average. Processes 4 floats at a time.
template <class T>
__global__ void look_ahead(Predecessor previous, float* weights, float* average, T* copies, float share,
                           std::size_t count, const std::uint32_t* skip) {
  await(previous);
  if (skipped(skip)) return;
  for (std::size_t i = 4 * grid_thread(); i < count; i += 4 * grid_threads()) {
    const auto fast = load_floats<4>(weights + i);
    auto slow = load_floats<4>(average + i);
    for (unsigned k = 0; k < 4; ++k) slow.at[k] += share * (fast.at[k] - slow.at[k]);
    store_floats(slow, average + i);
    store_floats(slow, weights + i);
    if (copies != nullptr) store_copies(slow, copies + i);
  }
}

// A segment's chunks, which are consecutive.
struct ChunkedSegment {
  std::uint32_t segment, first_chunk, end_chunk;
};

// Runs a block, a single column of threads, for each chunk: adds up squared weights and squared gradients.
__global__ void chunk_norms(Predecessor previous, const Chunk* chunks, const float* weights, const float* gradients,
                            Sums<2>* norms) {
  await(previous);
  const Chunk chunk = chunks[blockIdx.x];
  Sums<2> sums[1]{};
  for (std::size_t i = chunk.begin + 4 * threadIdx.y; i < chunk.end; i += 4 * blockDim.y) {
    const auto w = load_floats<4>(weights + i), g = load_floats<4>(gradients + i);
    for (unsigned k = 0; k < 4; ++k) sums[0] = combined(sums[0], {{w.at[k] * w.at[k], g.at[k] * g.at[k]}});
  }
  add_up_block(sums);
  if (threadIdx.y == 0) norms[blockIdx.x] = sums[0];
}

// Runs a block, a single column of threads, for each segment. `norms`: of all chunks.
__device__ void add_up_chunks(const ChunkedSegment* segments, const Sums<2>* norms, Sums<2> (&sums)[1]) {
  const ChunkedSegment segment = segments[blockIdx.x];
  for (std::uint32_t i = segment.first_chunk + threadIdx.y; i < segment.end_chunk; i += blockDim.y)
    sums[0] = combined(sums[0], norms[i]);
  add_up_block(sums);
}

__global__ void segment_norms(Predecessor previous, const ChunkedSegment* segments, const Sums<2>* norms,
                              Sums<2>* of_segments) {
  await(previous);
  Sums<2> sums[1]{};
  add_up_chunks(segments, norms, sums);
  if (threadIdx.y == 0) of_segments[blockIdx.x] = sums[0];
}

__global__ void local_rates(Predecessor previous, const ChunkedSegment* segments, const Sums<2>* norms, float trust,
                            const SegmentFactors* factors, float* local) {
  await(previous);
  Sums<2> sums[1]{};
  add_up_chunks(segments, norms, sums);
  if (threadIdx.y > 0) return;
  const std::uint32_t segment = segments[blockIdx.x].segment;
  const float weight = sqrtf(sums[0].of[0]), gradient = sqrtf(sums[0].of[1]);
  local[segment] =
      weight == 0 || gradient == 0 ? 1 : trust * weight / (gradient + factors[segment].weight_decay * weight);
}

// Local rates for LARS: computed from norms for weights, 1 for all other parameters.
class LocalRates {
 public:
  LocalRates(const UpdateArenas& arenas, const std::vector<UpdateSegment>& segments, Context& context)
      : context_(context),
        weights_(data<float>(arenas.weights)),
        gradients_(data<float>(arenas.gradients)),
        sum_over_ranks_(arenas.sum_over_ranks) {
    for (std::uint32_t i = 0; i < segments.size(); ++i)
      if (segments[i].role == Role::weight) append(i, kept_parts(arenas, segments[i].range));
    device_chunks_ = on_device(chunks_);
    device_segments_ = on_device(segments_);
    rates_ = on_device(std::vector<float>(segments.size(), 1.0f));
    norms_ = allocate_device(chunks_.size() * sizeof(Sums<2>));
    if (!sum_over_ranks_) return;
    segment_norms_ = allocate_device(segments_.size() * sizeof(Sums<2>));
    std::vector<ChunkedSegment> measured = segments_;
    for (std::uint32_t i = 0; i < measured.size(); ++i) measured[i] = {measured[i].segment, i, i + 1};
    measured_segments_ = on_device(measured);
  }

  const float* rates() const { return data<float>(rates_.view()); }

  // For the parameters in the slice. REQUIRES: the slice consists of whole parameters, and of all if this rank keeps
  // slices.
  void compute(const Range& slice, float trust, const SegmentFactors* factors) const {
    if (sum_over_ranks_) return compute_over_ranks(trust, factors);
    const auto begin = [&](const ChunkedSegment& s) { return chunks_[s.first_chunk].begin; };
    const auto first = std::ranges::lower_bound(segments_, slice.begin, {}, begin);
    const auto end = std::ranges::lower_bound(segments_, slice.end, {}, begin);
    if (first == end) return;
    measure(first->first_chunk, (end - 1)->end_chunk);
    launch(local_rates, end - first, dim3(1, kThreads), context_.lane.get(),
           data<ChunkedSegment>(device_segments_.view()) + (first - segments_.begin()), norms(), trust, factors,
           data<float>(rates_.view()));
  }

 private:
  void append(std::uint32_t segment, const std::vector<Range>& parts) {
    const auto first = static_cast<std::uint32_t>(chunks_.size());
    for (const Range& part : parts) append_chunks(part, chunks_);
    segments_.push_back({segment, first, static_cast<std::uint32_t>(chunks_.size())});
  }

  Sums<2>* norms() const { return data<Sums<2>>(norms_.view()); }

  // Each chunk has a place of its own, because slices are updated on the lane and on the lane beside it.
  void measure(std::uint32_t first_chunk, std::uint32_t end_chunk) const {
    if (first_chunk == end_chunk) return;
    launch(chunk_norms, end_chunk - first_chunk, dim3(1, kThreads), context_.lane.get(),
           data<Chunk>(device_chunks_.view()) + first_chunk, weights_, gradients_, norms() + first_chunk);
  }

  void compute_over_ranks(float trust, const SegmentFactors* factors) const {
    if (segments_.empty()) return;
    auto* of_segments = data<Sums<2>>(segment_norms_.view());
    measure(0, static_cast<std::uint32_t>(chunks_.size()));
    launch(segment_norms, segments_.size(), dim3(1, kThreads), context_.lane.get(),
           data<ChunkedSegment>(device_segments_.view()), norms(), of_segments);
    sum_over_ranks_(segment_norms_.view());
    launch(local_rates, segments_.size(), dim3(1, kThreads), context_.lane.get(),
           data<ChunkedSegment>(measured_segments_.view()), of_segments, trust, factors, data<float>(rates_.view()));
  }

  Context& context_;
  const float *weights_, *gradients_;
  const SumOverRanks sum_over_ranks_;  // empty if this rank has all parameters
  std::vector<Chunk> chunks_;
  std::vector<ChunkedSegment> segments_;
  Buffer device_chunks_, device_segments_, rates_, norms_;
  Buffer segment_norms_, measured_segments_;  // over all ranks: a "chunk" is a segment
};

std::vector<Owner> owners(const UpdateArenas& arenas, const std::vector<UpdateSegment>& segments) {
  // Floats between the segments do not change.
  std::vector<Owner> all(arenas.weights.bytes / sizeof(float) / kSlot, {static_cast<std::uint32_t>(Role::metric), 0});
  for (std::uint32_t i = 0; i < segments.size(); ++i) {
    const Range& range = segments[i].range;
    expect_blocks(range, kSlot);
    std::fill(all.begin() + static_cast<std::ptrdiff_t>(range.begin / kSlot),
              all.begin() + static_cast<std::ptrdiff_t>(range.end / kSlot),
              Owner{static_cast<std::uint32_t>(segments[i].role), i});
  }
  return all;
}

std::vector<SegmentFactors> factors(const UpdateRule& rule, const std::vector<UpdateSegment>& segments) {
  std::vector<SegmentFactors> all;
  for (const UpdateSegment& s : segments)
    all.push_back({s.role == Role::statistic ? s.statistic_momentum : s.factors.rate, weight_decay(rule, s),
                   s.factors.last_step});
  return all;
}

// 0 for segments that are not orthogonalized.
std::vector<float> orthogonal_scales(const Muon& rule, const std::vector<UpdateSegment>& segments) {
  std::vector<float> scales;
  for (const UpdateSegment& s : segments)
    scales.push_back(s.factors.orthogonalizes ? orthogonal_scale(rule, matrix_size(s.tensor.shape)) : 0);
  return scales;
}

template <class T>
class ArenaUpdate : public Update, public Divergence {
 public:
  ArenaUpdate(const UpdateRule& rule, const UpdateArenas& arenas, const std::vector<UpdateSegment>& segments,
              Context& context)
      : rule_(rule),
        context_(context),
        arenas_{data<float>(arenas.weights), data<float>(arenas.gradients), data<T>(arenas.copies),
                data<float>(arenas.states[0]), data<float>(arenas.states[1])},
        places_(arenas.kept),
        weights_(arenas.weights),
        average_(arenas.average),
        averaging_(arenas.averaging),
        owners_(on_device(owners(arenas, segments))),
        factors_(on_device(factors(rule, segments))),
        clip_(arenas, segments, context) {
    for (const Range& slice : arenas.kept) expect_blocks(slice, 4);
    *data<std::uint32_t>(diverged_.view()) = 0;
    if (std::holds_alternative<Lars>(rule)) local_ = std::make_unique<LocalRates>(arenas, segments, context);
    if (const auto* muon = std::get_if<Muon>(&rule)) {
      scales_ = on_device(orthogonal_scales(*muon, segments));
      directions_ = make_muon_directions(*muon, arenas, segments, context);
    }
  }

  void run(const Range& slice, float rate, std::uint64_t step) override {
    expect_blocks(slice, 4);
    if (slice.size() == 0) return;
    std::visit([&](const auto& rule) { run(rule, slice, rate, step); }, rule_);
    if (averaging_.moves_in(step)) move_average(slice, step);
  }

  bool diverged() const override {
    return std::atomic_ref(*data<std::uint32_t>(diverged_.view())).load(std::memory_order_relaxed) != 0;
  }
  void forget() override {
    std::atomic_ref(*data<std::uint32_t>(diverged_.view())).store(0, std::memory_order_relaxed);
  }

  void measure_parameters(const Range& slice) override {
    if (slice.size() == 0) return;
    if (directions_)
      directions_->compute(slice);
    else
      local_->compute(slice, std::get<Lars>(rule_).trust, data<SegmentFactors>(factors_.view()));
  }
  void clip(float limit) override { clip_.clip(limit); }
  void include(const std::function<double(double squares)>& all) override { clip_.include(all); }
  void measure_norm() override { clip_.measure_norm(); }
  GradientNorms take_norms() override { return clip_.take_norms(); }
  void add_squares(const Range& slice) override { clip_.add_squares(slice); }
  double take_squares() override { return clip_.take_squares(); }

 private:
  void move_average(const Range& slice, std::uint64_t step) {
    const std::size_t bytes = slice.size() * sizeof(float);
    const DeviceView weights = weights_.slice(slice.begin * sizeof(float), bytes);
    const DeviceView average = average_.slice(places_.of(slice.begin) * sizeof(float), bytes);
    const float share = averaging_.share(step);
    if (!averaging_.looks_ahead()) return move_towards(weights, average, share, context_);
    launch(look_ahead<T>, blocks_for(slice.size() / 4, kThreads, context_.multiprocessors), kThreads,
           context_.lane.get(), data<float>(weights), data<float>(average),
           arenas_.copies == nullptr ? nullptr : arenas_.copies + slice.begin, share, slice.size(), context_.skip);
  }

  SgdStep step_of(const Sgd& rule, float rate, std::uint64_t) const { return {rate, rule.momentum, rule.nesterov}; }
  LarsStep step_of(const Lars& rule, float rate, std::uint64_t) const { return {rate, rule.momentum, local_->rates()}; }
  AdamWStep step_of(const AdamW& rule, float rate, std::uint64_t step) const {
    const auto correction = [&](float beta) {
      return static_cast<float>(1 / (1 - std::pow(double{beta}, static_cast<double>(step))));
    };
    return {rate, rule.beta1, rule.beta2, rule.epsilon, correction(rule.beta1), correction(rule.beta2)};
  }

  template <class Rule>
  void run(const Rule& rule, const Range& slice, float rate, std::uint64_t step) {
    apply(step_of(rule, rate, step), slice, step);
  }
  void run(const Muon& rule, const Range& slice, float rate, std::uint64_t step) {
    std::visit(
        [&](const auto& other) {
          apply(MuonStep{rate, step_of(other, rate, step), data<const float>(scales_.view())}, slice, step);
        },
        rule.others);
  }

  template <class Step>
  void apply(const Step& step, const Range& slice, std::uint64_t number) {
    Arenas<T> arenas = arenas_;
    for (float** state : {&arenas.first_state, &arenas.second_state})
      if (*state != nullptr) *state += places_.of(slice.begin);
    launch(update<Step, T>, blocks_for(slice.size() / 4, kThreads, context_.multiprocessors), kThreads,
           context_.lane.get(), step, arenas, data<Owner>(owners_.view()), data<SegmentFactors>(factors_.view()),
           number, slice.begin, slice.end, context_.skip, data<std::uint32_t>(diverged_.view()));
  }

  UpdateRule rule_;
  Context& context_;
  Arenas<T> arenas_;
  const KeptPlaces places_;
  DeviceView weights_, average_;
  Averaging averaging_;
  Buffer owners_;   // an owner for each 16 floats
  Buffer factors_;  // for each segment
  GradientClip clip_;
  std::unique_ptr<LocalRates> local_;
  Buffer scales_;  // with Muon, for each segment
  std::unique_ptr<MuonDirections> directions_;
  const Buffer diverged_ = allocate_pinned(sizeof(std::uint32_t));  // the host reads it while the lane goes on
};

}  // namespace

std::unique_ptr<Update> plan_update(const UpdateRule& rule, const UpdateArenas& arenas,
                                    const std::vector<UpdateSegment>& segments, Context& context) {
  return make_for<Update, ArenaUpdate>(context.type(), rule, arenas, segments, context);
}

}  // namespace annulus::cuda
