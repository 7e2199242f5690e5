#include "kernels/cuda/ops/loops/elementwise.h"

#include <algorithm>

#include "kernels/cuda/ops/loops/divisor.h"
#include "kernels/cuda/ops/loops/over_vectors.h"

namespace annulus::cuda {
namespace {

template <class T>
__global__ void cast_vectors(Predecessor previous, const float* from, T* to, std::size_t vectors) {
  await(previous);
  for (std::size_t i = grid_thread(); i < vectors; i += grid_threads())
    store(load_floats<kLanes<T>>(from + i * kLanes<T>), to, i);
}

template <class T>
__global__ void widen_vectors(Predecessor previous, const T* from, float* to, const float* factor,
                              std::size_t vectors) {
  await(previous);
  const float by = *factor;
  for (std::size_t i = grid_thread(); i < vectors; i += grid_threads()) {
    Vector<T> values = load(from, i);
    for (unsigned k = 0; k < kLanes<T>; ++k) values.at[k] *= by;
    store_floats(values, to + i * kLanes<T>);
  }
}

template <class T>
__global__ void narrow_vectors(Predecessor previous, const float* from, T* to, const float* factor,
                               std::size_t vectors) {
  await(previous);
  const float by = *factor;
  for (std::size_t i = grid_thread(); i < vectors; i += grid_threads()) {
    Floats<kLanes<T>> values = load_floats<kLanes<T>>(from + i * kLanes<T>);
    for (unsigned k = 0; k < kLanes<T>; ++k) values.at[k] *= by;
    store(values, to, i);
  }
}

__global__ void scale_vectors(Predecessor previous, const float* from, float factor, float* to, std::size_t vectors) {
  await(previous);
  for (std::size_t i = grid_thread(); i < vectors; i += grid_threads()) {
    Vector<float> values = load(from, i);
    for (unsigned k = 0; k < kLanes<float>; ++k) values.at[k] *= factor;
    store(values, to, i);
  }
}

__global__ void add_scaled_vectors(Predecessor previous, const float* from, float factor, float* to,
                                   std::size_t vectors) {
  await(previous);
  for (std::size_t i = grid_thread(); i < vectors; i += grid_threads()) {
    const Vector<float> more = load(from, i);
    Vector<float> values = load(to, i);
    for (unsigned k = 0; k < kLanes<float>; ++k) values.at[k] += factor * more.at[k];
    store(values, to, i);
  }
}

__global__ void move_vectors(Predecessor previous, const float* from, float* to, float share, const std::uint32_t* skip,
                             std::size_t vectors) {
  await(previous);
  if (skipped(skip)) return;
  for (std::size_t i = grid_thread(); i < vectors; i += grid_threads()) {
    const Vector<float> goal = load(from, i);
    Vector<float> values = load(to, i);
    for (unsigned k = 0; k < kLanes<float>; ++k) values.at[k] += share * (goal.at[k] - values.at[k]);
    store(values, to, i);
  }
}

__global__ void swap_vectors(Predecessor previous, float* a, float* b, std::size_t vectors) {
  await(previous);
  for (std::size_t i = grid_thread(); i < vectors; i += grid_threads()) {
    const Packed<float> from_a = fetch(a, i), from_b = fetch(b, i);
    store(unpacked<float>(from_b), a, i);
    store(unpacked<float>(from_a), b, i);
  }
}

constexpr unsigned kWarp = 32, kWarps = 8;  // threads in a warp, and warps in a block that adds rows

// Rows with the same index may be anywhere in `from`. So a warp looks at all indices, in order, and adds the rows whose
// index modulo the warp count is the warp's number: a part of the rows' width, a vector for each thread. `factor` may
// be null.
template <class T>
__global__ void add_row_vectors(Predecessor previous, const T* from, const std::int32_t* index, std::size_t rows,
                                Divisor warps, const float* factor, float* to, unsigned vectors) {
  await(previous);
  constexpr unsigned kBatch = 4;  // loads in flight
  struct Found {
    std::uint32_t row;
    std::int32_t index;
  };
  __shared__ Found all_found[kWarps][2 * kWarp];
  Found* const found = all_found[threadIdx.y];
  const unsigned own = blockIdx.x * kWarps + threadIdx.y, vector = blockIdx.y * kWarp + threadIdx.x;
  const float by = factor == nullptr ? 1 : *factor;
  // The row of `to` that was added to last stays in registers, as a frequent index may follow itself.
  std::int32_t current = -1;
  Vector<T> sum{};
  const auto current_row = [&] { return to + (static_cast<std::size_t>(current) * vectors + vector) * kLanes<T>; };
  const auto add_found = [&](unsigned count) {
    for (unsigned first = 0; first < count; first += kBatch) {
      Packed<T> more[kBatch];
      for (unsigned k = 0; k < kBatch; ++k)
        if (first + k < count) more[k] = fetch(from, std::size_t{found[first + k].row} * vectors + vector);
      for (unsigned k = 0; k < kBatch; ++k) {
        if (first + k >= count) continue;
        if (found[first + k].index != current) {
          if (current >= 0) store_floats(sum, current_row());
          current = found[first + k].index;
          sum = load_floats<kLanes<T>>(current_row());
        }
        const Vector<T> values = unpacked<T>(more[k]);
        for (unsigned i = 0; i < kLanes<T>; ++i) sum.at[i] += by * values.at[i];
      }
    }
  };
  const auto index_at = [&](std::size_t row) { return row < rows ? index[row] : -1; };
  unsigned count = 0;
  std::int32_t next = index_at(threadIdx.x);
  for (std::size_t first = 0; first < rows; first += kWarp) {
    const std::int32_t place = next;
    next = index_at(first + kWarp + threadIdx.x);
    const bool is_own = place >= 0 && static_cast<unsigned>(place) % warps == own;
    const unsigned lanes = __ballot_sync(0xffffffffu, is_own);
    if (is_own)
      found[count + __popc(lanes & ((1u << threadIdx.x) - 1))] = {static_cast<std::uint32_t>(first) + threadIdx.x,
                                                                  place};
    count += __popc(lanes);
    if (count < kWarp && first + kWarp < rows) continue;
    __syncwarp();
    if (vector < vectors) add_found(count);
    __syncwarp();
    count = 0;
  }
  if (vector < vectors && current >= 0) store_floats(sum, current_row());
}

}  // namespace

void add_rows(DeviceView from, DataType type, DeviceView index, std::size_t width, DeviceView to,
              const Context& context) {
  constexpr unsigned kBlocksEach = 2;  // for each multiprocessor; every warp looks at all indices
  const std::size_t rows = index.bytes / sizeof(std::int32_t);
  if (rows == 0) return;
  for_type(type, [&](auto zero) {
    using T = decltype(zero);
    const auto vectors = static_cast<unsigned>(width / kLanes<T>);
    const unsigned tiles = (vectors + kWarp - 1) / kWarp;
    const std::size_t most = std::max(1u, kBlocksEach * static_cast<unsigned>(context.multiprocessors) / tiles);
    const auto blocks = static_cast<unsigned>(std::clamp<std::size_t>((rows + kWarps - 1) / kWarps, 1, most));
    launch(add_row_vectors<T>, dim3(blocks, tiles), dim3(kWarp, kWarps), context.lane.get(), data<T>(from),
           data<std::int32_t>(index), rows, Divisor(blocks * kWarps), type == DataType::f32 ? nullptr : context.unscale,
           data<float>(to), vectors);
  });
}

void add(DeviceView from, DeviceView to, DataType type, const Context& context) {
  for_type(type, [&](auto zero) {
    using T = decltype(zero);
    over_vectors(add_vectors<T>, to.bytes / kVectorBytes, context, data<T>(to), data<T>(from), data<T>(to));
  });
}

void scale(DeviceView from, float factor, DeviceView to, const Context& context) {
  over_vectors(scale_vectors, to.bytes / kVectorBytes, context, data<float>(from), factor, data<float>(to));
}

void add_scaled(DeviceView from, float factor, DeviceView to, const Context& context) {
  over_vectors(add_scaled_vectors, to.bytes / kVectorBytes, context, data<float>(from), factor, data<float>(to));
}

void move_towards(DeviceView goal, DeviceView values, float share, const Context& context) {
  over_vectors(move_vectors, values.bytes / kVectorBytes, context, data<float>(goal), data<float>(values), share,
               context.skip);
}

void swap(DeviceView a, DeviceView b, const Context& context) {
  over_vectors(swap_vectors, a.bytes / kVectorBytes, context, data<float>(a), data<float>(b));
}

void cast_params(DeviceView weights, DeviceView copies, const Context& context) {
  for_type(context.type(), [&](auto zero) {
    using T = decltype(zero);
    over_vectors(cast_vectors<T>, copies.bytes / kVectorBytes, context, data<float>(weights), data<T>(copies));
  });
}

void widen(const void* from, DeviceView to, const float* factor, const Context& context) {
  for_type(context.type(), [&](auto zero) {
    using T = decltype(zero);
    over_vectors(widen_vectors<T>, to.bytes / sizeof(float) / kLanes<T>, context, static_cast<const T*>(from),
                 data<float>(to), factor);
  });
}

void narrow(DeviceView from, DeviceView to, const float* factor, const Context& context) {
  for_type(context.type(), [&](auto zero) {
    using T = decltype(zero);
    over_vectors(narrow_vectors<T>, to.bytes / kVectorBytes, context, data<float>(from), data<T>(to), factor);
  });
}

}  // namespace annulus::cuda
