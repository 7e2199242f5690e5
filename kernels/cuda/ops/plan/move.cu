#include "kernels/cuda/ops/plan/move.h"

#include "kernels/cuda/ops/loops/input_gradient.h"
#include "kernels/cuda/ops/loops/lanes.h"
#include "kernels/cuda/ops/loops/over_vectors.h"

namespace annulus::cuda {
namespace {

template <class T>
__global__ void pull_vectors(Predecessor previous, Move::Pull pull, const T* from, InputGradient<T> to,
                             std::size_t vectors) {
  await(previous);
  const Loop<1>& loop = pull.loop;
  const unsigned in_row = (loop.channels + kLanes<T> - 1) / kLanes<T>;
  for (std::size_t i = grid_thread(); i < vectors; i += grid_threads()) {
    const auto index = static_cast<unsigned>(i);
    const unsigned first = index % in_row * kLanes<T>;
    const unsigned used = loop.channels - first < kLanes<T> ? loop.channels - first : kLanes<T>;
    std::int64_t offset = pull.first + first * loop.channel_stride[0];
    bool inside = true;
    unsigned rest = index / in_row;
    for (unsigned d = loop.dimensions; d-- > 0; rest /= loop.size[d]) {
      const unsigned at = rest % loop.size[d];
      inside = inside && at >= pull.begin[d] && at < pull.end[d];
      offset += at * loop.stride[0][d];
    }
    Vector<T> values{};
    if (inside && first >= pull.channel_begin && first + used <= pull.channel_end) {
      values = load(from, Lanes{offset, loop.channel_stride[0], used});
    } else {
      for (unsigned k = 0; k < used; ++k)
        values.at[k] = inside && first + k >= pull.channel_begin && first + k < pull.channel_end
                           ? static_cast<float>(from[offset + k * loop.channel_stride[0]])
                           : pull.fill;
    }
    to.put(values, i);
  }
}

constexpr unsigned kTile = 32, kTileRows = 8;

// Moves tiles in the matrix that the channels and a dimension `along` form, where elements are neighbours in the
// source, so that both reads and writes go to neighbours.
template <class T>
__global__ void transpose_tiles(Predecessor previous, const __grid_constant__ Loop<1> loop, unsigned along,
                                std::int64_t first, const T* from, InputGradient<T> to, unsigned tiles) {
  await(previous);
  __shared__ float tile[kTile][kTile + 1];
  const unsigned padded = (loop.channels + kLanes<T> - 1) / kLanes<T> * kLanes<T>, extent = loop.size[along];
  const unsigned across_tiles = (padded + kTile - 1) / kTile, along_tiles = (extent + kTile - 1) / kTile;
  for (unsigned t = blockIdx.x; t < tiles; t += gridDim.x) {
    const unsigned channel = t % across_tiles * kTile, begin = t / across_tiles % along_tiles * kTile;
    unsigned rest = t / across_tiles / along_tiles;
    std::int64_t offset = first + channel * loop.channel_stride[0] + begin;
    std::size_t row = 0, rows = 1, step = 1;  // in the output; from an element to the next
    for (unsigned d = loop.dimensions; d-- > 0; rows *= loop.size[d]) {
      if (d == along) {
        step = rows;
        continue;
      }
      row += rest % loop.size[d] * rows;
      offset += rest % loop.size[d] * loop.stride[0][d];
      rest /= loop.size[d];
    }
    row += begin * step;
    for (unsigned y = threadIdx.y; y < kTile; y += kTileRows)
      if (channel + y < loop.channels && begin + threadIdx.x < extent)
        tile[y][threadIdx.x] = static_cast<float>(from[offset + y * loop.channel_stride[0] + threadIdx.x]);
    __syncthreads();
    for (unsigned y = threadIdx.y; y < kTile; y += kTileRows)
      if (channel + threadIdx.x < padded && begin + y < extent) {
        T& target = to.values[(row + y * step) * padded + channel + threadIdx.x];
        const float value = channel + threadIdx.x < loop.channels ? tile[threadIdx.x][y] : 0;
        target = T(value + (to.accumulate ? static_cast<float>(target) : 0));
      }
    __syncthreads();  // before the next tile
  }
}

}  // namespace

Move::Move(const Plan& plan, Context& context)
    : context_(context), same_size_(plan.from.layout->bytes() == plan.to.layout->bytes()) {
  const ChannelsLast& to = channels_last(plan.to);
  const bool all = plan.ranges.empty();
  pull_.loop = loop_over<1>(to, {plan.strides}, static_cast<unsigned>(channel_block(context.type())), all);
  pull_.first = plan.first;
  pull_.fill = plan.fill;
  pull_.channel_end = pull_.loop.channels;
  for (unsigned d = 0; d < pull_.loop.dimensions; ++d) pull_.end[d] = pull_.loop.size[d];
  for (std::size_t i = 0, d = 0; i < plan.ranges.size(); ++i) {
    const auto begin = static_cast<unsigned>(plan.ranges[i].begin), end = static_cast<unsigned>(plan.ranges[i].end);
    (i == to.axis() ? pull_.channel_begin : pull_.begin[d]) = begin;
    (i == to.axis() ? pull_.channel_end : pull_.end[d]) = end;
    if (i != to.axis()) ++d;
  }
  if (!all || pull_.loop.channel_stride[0] == 1) return;
  for (unsigned d = 0; d < pull_.loop.dimensions; ++d)
    if (pull_.loop.stride[0][d] == 1) transposed_ = d;
}

bool Move::keeps_memory() const {
  const Loop<1>& loop = pull_.loop;
  for (unsigned d = 0; d < loop.dimensions; ++d)
    if (pull_.begin[d] > 0 || pull_.end[d] < loop.size[d]) return false;
  const bool rows =
      loop.dimensions == 0 || (loop.dimensions == 1 && loop.stride[0][0] == loop.row_vectors() * loop.lanes);
  return rows && same_size_ && pull_.first == 0 && loop.channel_stride[0] == 1 && pull_.channel_begin == 0 &&
         pull_.channel_end == loop.channels;
}

void Move::run(DeviceView from, DeviceView to, bool accumulate) const {
  if (!accumulate && from.address == to.address && keeps_memory()) return;
  for_type(context_.type(), [&](auto zero) {
    using T = decltype(zero);
    InputGradient<T> target;
    target.values = data<T>(to);
    target.accumulate = accumulate;
    if (transposed_) return transpose(data<T>(from), target);
    over_vectors(pull_vectors<T>, pull_.loop.vectors(), context_, pull_, data<T>(from), target);
  });
}

template <class T>
void Move::transpose(const T* from, const InputGradient<T>& to) const {
  const auto tiles_of = [](std::size_t size) { return (size + kTile - 1) / kTile; };
  const Loop<1>& loop = pull_.loop;
  const unsigned extent = loop.size[*transposed_];
  const std::size_t tiles = loop.rows() / extent * tiles_of(extent) * tiles_of(loop.row_vectors() * loop.lanes);
  launch(transpose_tiles<T>, blocks_for(tiles, 1, context_.multiprocessors), dim3(kTile, kTileRows),
         context_.lane.get(), loop, *transposed_, pull_.first, from, to, static_cast<unsigned>(tiles));
}

Move to_layout(const TensorSpec& from, const TensorSpec& to, Context& context) {
  return Move({.from = from, .to = to, .strides = strides_of(from)}, context);
}

}  // namespace annulus::cuda
