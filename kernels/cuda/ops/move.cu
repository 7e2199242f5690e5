#include "kernels/cuda/ops/move.h"

#include "kernels/cuda/ops/input_gradient.h"
#include "kernels/cuda/ops/lanes.h"
#include "kernels/cuda/ops/over_vectors.h"

namespace annulus::cuda {
namespace {

template <class T>
__global__ void pull_vectors(Move::Pull pull, const T* from, InputGradient<T> to, std::size_t vectors) {
  const Loop<1>& loop = pull.loop;
  const unsigned in_row = (loop.channels + kLanes<T> - 1) / kLanes<T>;
  for (std::size_t i = grid_thread(); i < vectors; i += grid_threads()) {
    const unsigned first = static_cast<unsigned>(i % in_row) * kLanes<T>;
    const unsigned used = loop.channels - first < kLanes<T> ? loop.channels - first : kLanes<T>;
    std::int64_t offset = pull.first + first * loop.channel_stride[0];
    bool inside = true;
    std::size_t rest = i / in_row;
    for (unsigned d = loop.dimensions; d-- > 0; rest /= loop.size[d]) {
      const auto at = static_cast<unsigned>(rest % loop.size[d]);
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
    over_vectors(pull_vectors<T>, pull_.loop.vectors(), context_, pull_, data<T>(from), target);
  });
}

Move to_layout(const TensorSpec& from, const TensorSpec& to, Context& context) {
  return Move({.from = from, .to = to, .strides = strides_of(from)}, context);
}

}  // namespace annulus::cuda
