#include "kernels/cuda/ops/update/gradient_clip.h"

#include <algorithm>
#include <limits>

#include "kernels/cuda/ops/loops/column_sums.h"

namespace annulus::cuda {
namespace {

constexpr unsigned kThreads = 256;
constexpr Chunk kAll{0, std::numeric_limits<std::size_t>::max()};

// The state in device memory.
struct State {
  GradientNorms norms;
  float factor;  // for this step's gradients
};

// Runs a block, a single column of threads, for each chunk: sums the squares in the chunk's part of the slice.
__global__ void chunk_squares(Predecessor previous, const Chunk* chunks, Chunk slice, const float* gradients,
                              Sums<1>* squares) {
  await(previous);
  const Chunk chunk = chunks[blockIdx.x];
  const std::size_t begin = chunk.begin > slice.begin ? chunk.begin : slice.begin;
  const std::size_t end = chunk.end < slice.end ? chunk.end : slice.end;
  Sums<1> sums[1]{};
  for (std::size_t i = begin + 4 * threadIdx.y; i < end; i += 4 * blockDim.y)
    for (const float value : load_floats<4>(gradients + i).at) sums[0].of[0] += value * value;
  add_up_block(sums);
  if (threadIdx.y == 0) squares[blockIdx.x] = sums[0];
}

// Runs in a single block. A norm that is not finite makes the gradients not finite either, so divergence shows. But in
// a skipped step the gradients do not change, because no later step would restore the zeros in the padding.
__global__ void find_factor(Predecessor previous, const Sums<1>* squares, std::size_t chunks, float limit,
                            const std::uint32_t* skip, State* state) {
  await(previous);
  Sums<1> sums[1]{};
  for (std::size_t i = threadIdx.y; i < chunks; i += blockDim.y) sums[0] = combined(sums[0], squares[i]);
  add_up_block(sums);
  if (threadIdx.y > 0) return;
  const float norm = sqrtf(sums[0].of[0]);
  state->factor = skipped(skip) || norm <= limit ? 1 : limit / norm;
  if (skipped(skip)) return;
  ++state->norms.steps;
  state->norms.last = norm;
  state->norms.sum += norm;
  state->norms.largest = norm <= state->norms.largest ? state->norms.largest : norm;
}

// Runs in a single block.
__global__ void add_up_chunks(Predecessor previous, const Sums<1>* squares, std::size_t chunks, Sums<1>* all) {
  await(previous);
  Sums<1> sums[1]{};
  for (std::size_t i = threadIdx.y; i < chunks; i += blockDim.y) sums[0] = combined(sums[0], squares[i]);
  add_up_block(sums);
  if (threadIdx.y == 0) *all = sums[0];
}

// Runs in a single block.
__global__ void add_to_sum(Predecessor previous, const Sums<1>* squares, std::size_t chunks, double* sum) {
  await(previous);
  Sums<1> sums[1]{};
  for (std::size_t i = threadIdx.y; i < chunks; i += blockDim.y) sums[0] = combined(sums[0], squares[i]);
  add_up_block(sums);
  if (threadIdx.y == 0) *sum += sums[0].of[0];
}

__global__ void scale_chunks(Predecessor previous, const Chunk* chunks, float* gradients, const State* state) {
  await(previous);
  const float factor = state->factor;
  if (factor == 1) return;
  const Chunk chunk = chunks[blockIdx.x];
  for (std::size_t i = chunk.begin + 4 * threadIdx.x; i < chunk.end; i += 4 * blockDim.x) {
    auto values = load_floats<4>(gradients + i);
    for (float& value : values.at) value *= factor;
    store_floats(values, gradients + i);
  }
}

std::vector<Chunk> trained_chunks(const UpdateArenas& arenas, const std::vector<UpdateSegment>& segments) {
  std::vector<Chunk> chunks;
  for (const UpdateSegment& segment : segments)
    if (trained(segment.role))
      for (const Range& part : kept_parts(arenas, segment.range)) append_chunks(part, chunks);
  return chunks;
}

}  // namespace

GradientClip::GradientClip(const UpdateArenas& arenas, const std::vector<UpdateSegment>& segments, Context& context)
    : context_(context),
      gradients_(data<float>(arenas.gradients)),
      sum_over_ranks_(arenas.sum_over_ranks),
      chunks_(trained_chunks(arenas, segments)),
      device_chunks_(on_device(chunks_)),
      squares_(allocate_device(chunks_.size() * sizeof(Sums<1>))),
      all_squares_(allocate_device(sizeof(Sums<1>))),
      state_(allocate_device(sizeof(State))),
      sum_(allocate_device(sizeof(double))) {}

void GradientClip::clip(float limit) const {
  find_factor_to(limit);
  if (chunks_.empty()) return;
  launch(scale_chunks, static_cast<unsigned>(chunks_.size()), kThreads, context_.lane.get(),
         data<Chunk>(device_chunks_.view()), gradients_, data<State>(state_.view()));
}

// With an infinite limit, nothing is scaled.
void GradientClip::measure_norm() const {
  find_factor_to(std::numeric_limits<float>::infinity());
}

void GradientClip::find_factor_to(float limit) const {
  if (chunks_.empty() && !sum_over_ranks_ && !include_) return;
  auto* squares = data<Sums<1>>(squares_.view());
  std::size_t count = chunks_.size();
  if (count > 0)
    launch(chunk_squares, static_cast<unsigned>(count), dim3(1, kThreads), context_.lane.get(),
           data<Chunk>(device_chunks_.view()), kAll, gradients_, squares);
  if (sum_over_ranks_ || include_) {
    auto* const all = data<Sums<1>>(all_squares_.view());
    launch(add_up_chunks, 1, dim3(1, kThreads), context_.lane.get(), squares, count, all);
    if (sum_over_ranks_) sum_over_ranks_(all_squares_.view());
    if (include_) include_others();
    squares = all;
    count = 1;
  }
  launch(find_factor, 1, dim3(1, kThreads), context_.lane.get(), squares, count, limit, context_.skip,
         data<State>(state_.view()));
}

void GradientClip::include_others() const {
  float squares = 0;
  const auto copy = [&](void* to, const void* from) {
    check(cudaMemcpyAsync(to, from, sizeof squares, cudaMemcpyDefault, context_.lane.get()));
    check(cudaStreamSynchronize(context_.lane.get()));
  };
  copy(&squares, all_squares_.view().address);
  squares = static_cast<float>(include_(squares));
  copy(all_squares_.view().address, &squares);
}

void GradientClip::add_squares(const Range& slice) const {
  const auto first = std::ranges::upper_bound(chunks_, slice.begin, {}, &Chunk::end);
  const auto last = std::ranges::lower_bound(first, chunks_.end(), slice.end, {}, &Chunk::begin);
  if (first == last) return;
  const auto count = static_cast<std::size_t>(last - first);
  auto* squares = data<Sums<1>>(squares_.view());
  launch(chunk_squares, static_cast<unsigned>(count), dim3(1, kThreads), context_.lane.get(),
         data<Chunk>(device_chunks_.view()) + (first - chunks_.begin()), Chunk{slice.begin, slice.end}, gradients_,
         squares);
  launch(add_to_sum, 1, dim3(1, kThreads), context_.lane.get(), squares, count, data<double>(sum_.view()));
}

double GradientClip::take_squares() const {
  double sum = 0;
  check(cudaMemcpyAsync(&sum, sum_.view().address, sizeof sum, cudaMemcpyDeviceToHost, context_.lane.get()));
  check(cudaStreamSynchronize(context_.lane.get()));
  check(cudaMemsetAsync(sum_.view().address, 0, sizeof sum, context_.lane.get()));
  return sum;
}

GradientNorms GradientClip::take_norms() const {
  State state{};
  check(cudaMemcpyAsync(&state, state_.view().address, sizeof state, cudaMemcpyDeviceToHost, context_.lane.get()));
  check(cudaStreamSynchronize(context_.lane.get()));
  check(cudaMemsetAsync(state_.view().address, 0, sizeof state, context_.lane.get()));
  return state.norms;
}

}  // namespace annulus::cuda
