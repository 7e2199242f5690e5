// A 3x3 convolution with 16 to 64 channels as nine matrix products, which also does passes of the batch norms beside it
// (product.h). Small networks consist of these, and spend most of their time in launches and in batch norms' passes.
//
// A block keeps all weights in shared memory, computes 128 pixels at a time, and moves down the images. It copies the
// pixel rows that the windows cover to shared memory once, after the batch norm and the ReLU. For each place in the
// window, a warp then multiplies 16 pixels there by the place's weights. In backward a window covers the output pixels
// that depend on an input pixel, and with a stride of 2 only some places have a pixel.
//
//   window place 0         1                       8
//   pixels there x weights + pixels x weights + ... + pixels x weights

#include "kernels/cuda/ops/product/window_product.h"

#include "kernels/cuda/ops/product/product.h"
#include "kernels/cuda/ops/product/warp.h"

namespace annulus::cuda {
namespace {

constexpr unsigned kSide = 3, kPlaces = kSide * kSide, kPadding = 1;
constexpr unsigned kPitchPadding = 8;  // values after a row in shared memory, against bank conflicts

// Maps a result pixel to the left operand's pixels in the window. In backward both are gradients. Sizes in pixels.
struct Windows {
  struct Place {
    unsigned image, y, x;
  };
  struct Rows {
    unsigned first, end;  // counted through all images
  };

  unsigned height, width;                // the left operand's images
  unsigned result_height, result_width;  // the result's
  unsigned stride;
  bool backward;

  // The result's index-th pixel.
  __host__ __device__ Place place(unsigned index) const {
    const unsigned row = index / result_width;
    return {row / result_height, row % result_height, index % result_width};
  }
  // Returns the coordinate that the result at a coordinate reads at a window's place, beyond the image if none.
  __host__ __device__ unsigned source(unsigned at, unsigned place) const {
    if (!backward) return at * stride + place - kPadding;
    const unsigned moved = at + kPadding - place;
    return moved % stride == 0 ? moved / stride : ~0u;
  }
  // Returns the rows that these result pixels read.
  __host__ __device__ Rows rows(unsigned first, unsigned last) const {
    const Place from = place(first), to = place(last);
    const unsigned low = backward ? (max(from.y, 1u) + stride - 2) / stride : max(from.y * stride, 1u) - 1;
    const unsigned high = backward ? (to.y + 1) / stride : to.y * stride + 1;
    return {from.image * height + low, to.image * height + min(high, height - 1) + 1};
  }
  // In forward: the left pixel in the middle of a result's window. Pixels up to the next result's belong to this
  // result.
  __host__ __device__ unsigned middle(unsigned index) const {
    const Place at = place(index);
    return (at.image * height + at.y * stride) * width + at.x * stride;
  }
};

template <class T>
struct WindowProduct : Product<T> {
  Windows windows;
};

// A thread's work. In shared memory: a ProductEnd, the weights, a pixel with zeros, and the left operand's pixels.
template <class T, unsigned columns, Pass pass>
class Worker {
 public:
  __device__ explicit Worker(const WindowProduct<T>& product)
      : p_(product),
        windows_(product.windows),
        self_(threadIdx.x),
        end_(product, shared_memory()),
        terms_(kPlaces * (kBackward ? product.columns : product.inner)),
        weight_pitch_((terms_ + kPitchPadding) * sizeof(T)),
        pixel_pitch_((product.inner + kPitchPadding) * sizeof(T)),
        weights_(shared_memory() + ProductEnd<T, columns, pass>::kBytes),
        zeros_(weights_ + (kBackward ? product.inner : columns) * weight_pitch_) {}

  __device__ void run() {
    end_.clear_sums();
    copy_weights();
    for (unsigned at = self_ * 16; at < pixel_pitch_; at += kThreads * 16) put(zeros_ + at, Packed<T>{});
    for (unsigned tile = blockIdx.y; tile * kRows < p_.rows; tile += gridDim.y) {
      copy_pixels(tile);
      __pipeline_wait_prior(0);
      __syncthreads();
      float sums[columns / 2]{};
      multiply_windows(tile, sums);
      end_.finish_tile(tile, sums);
    }
    end_.finish_sums();
  }

 private:
  static constexpr bool kBackward = is_backward(pass);

  __device__ static void put(std::byte* to, const Packed<T>& values) { *reinterpret_cast<Packed<T>*>(to) = values; }

  // {filters, places, channels}.
  __device__ void copy_weights() {
    const unsigned vectors = terms_ / 8, count = (kBackward ? p_.inner : p_.columns) * vectors;
    for (unsigned i = self_; i < count; i += kThreads)
      __pipeline_memcpy_async(weights_ + i / vectors * weight_pitch_ + i % vectors * 16, p_.weights + i * 8, 16);
    __pipeline_commit();
  }

  // A thread has the same channels in each pixel.
  __device__ void copy_pixels(unsigned tile) {
    constexpr unsigned kBatch = 4;  // loads in flight
    const unsigned vectors = p_.inner / 8, vector = self_ % vectors, step = kThreads / vectors;
    const unsigned first = tile * kRows, last = min(first + kRows, p_.rows) - 1;
    const Windows::Rows rows = windows_.rows(first, last);
    const unsigned begin = rows.first * windows_.width, end = rows.end * windows_.width;
    unsigned own_begin = 0, own_end = 0;  // the normalized pixels that this block stores
    Floats<8> factor{}, offset{};
    if constexpr (computes_input(pass)) {
      own_begin = windows_.middle(first);
      own_end = windows_.middle(last + 1);  // after the last, in an image that does not exist
      factor = load_floats<8>(p_.factor + vector * 8);
      offset = load_floats<8>(p_.offset + vector * 8);
    }
#pragma unroll 1
    for (unsigned from = begin + self_ / vectors; from < end; from += kBatch * step) {
      Packed<T> values[kBatch], addends[kBatch];
      for (unsigned k = 0; k < kBatch; ++k) {
        const unsigned pixel = from + k * step;
        if (pixel >= end) continue;
        values[k] = fetch(p_.left, pixel * vectors + vector);
        if constexpr (pass == Pass::block_end) addends[k] = fetch(p_.addend, pixel * vectors + vector);
      }
      for (unsigned k = 0; k < kBatch; ++k) {
        const unsigned pixel = from + k * step;
        if (pixel >= end) continue;
        if constexpr (computes_input(pass)) {
          values[k] = normalized<T, pass>(values[k], addends[k], factor, offset);
          if (own_begin <= pixel && pixel < own_end)
            reinterpret_cast<Packed<T>*>(p_.normalized)[pixel * vectors + vector] = values[k];
        }
        put(zeros_ + (1 + pixel - begin) * pixel_pitch_ + vector * 16, values[k]);
      }
    }
    first_row_ = rows.first;
  }

  __device__ void multiply_windows(unsigned tile, float (&sums)[columns / 2]) {
    constexpr auto kNeighbours = kBackward ? Neighbours::results : Neighbours::terms;
    const unsigned index = tile * kRows + self_ / 32 * kWarpRows + self_ % kWarpRows;
    const unsigned place_bytes = terms_ / kPlaces * sizeof(T);
    const unsigned depth_bytes = kBackward ? kProductDepth * weight_pitch_ : kProductDepth * sizeof(T);
    const Windows::Place at = windows_.place(index);
    const bool exists = index < p_.rows;
    __syncwarp();
#pragma unroll 1
    for (unsigned place = 0; place < kPlaces; ++place) {
      const unsigned y = windows_.source(at.y, place / kSide), x = windows_.source(at.x, place % kSide);
      const bool there = exists && y < windows_.height && x < windows_.width;
      const unsigned pixel = there ? 1 + (at.image * windows_.height + y - first_row_) * windows_.width + x : 0;
      const std::byte* const left = zeros_ + pixel * pixel_pitch_;
      const std::byte* const right = weights_ + place * place_bytes;
#pragma unroll 1
      for (unsigned k = 0; k < p_.inner / kProductDepth; ++k)
        multiply<T, kNeighbours>(sums, left + k * kProductDepth * sizeof(T), right + k * depth_bytes, weight_pitch_);
    }
  }

  const WindowProduct<T>& p_;
  const Windows& windows_;
  const unsigned self_;
  ProductEnd<T, columns, pass> end_;
  const unsigned terms_, weight_pitch_, pixel_pitch_;  // a filter's terms; pitches in bytes
  std::byte *const weights_, *const zeros_;
  unsigned first_row_ = 0;  // in shared memory
};

template <class T, unsigned columns, Pass pass>
__global__ void __launch_bounds__(kThreads, kBlocksEach)
    window_product(Predecessor previous, const __grid_constant__ WindowProduct<T> product) {
  await(previous);
  Worker<T, columns, pass>(product).run();
}

template <class T>
class WindowPlan final : public ProductPlan<WindowProduct<T>> {
 public:
  WindowPlan(const ConvolutionProblem& problem, int multiprocessors) : ProductPlan<WindowProduct<T>>(problem) {
    const auto size = [](std::size_t extent) { return static_cast<unsigned>(extent); };
    Windows& windows = this->product_.windows;
    windows = {size(problem.height),         size(problem.width),         size(problem.output_height()),
               size(problem.output_width()), size(problem.stride.height), !problem.is<Forward>()};
    if (windows.backward) {
      std::swap(windows.height, windows.result_height);
      std::swap(windows.width, windows.result_width);
    }
    this->product_.rows = size(problem.batch) * windows.result_height * windows.result_width;
    if (this->product_.columns == 16)
      choose<16>(multiprocessors);
    else
      this->product_.columns == 32 ? choose<32>(multiprocessors) : choose<64>(multiprocessors);
  }

 private:
  template <unsigned columns>
  void choose(int multiprocessors) {
    ProductPlan<WindowProduct<T>>::choose(columns, ProductEnd<T, columns, Pass::stored>::kBytes + operand_bytes(),
                                          multiprocessors,
                                          [](auto pass) { return window_product<T, columns, pass.value>; });
  }

  std::size_t operand_bytes() const {
    const WindowProduct<T>& p = this->product_;
    const unsigned filters = p.windows.backward ? p.inner : p.columns,
                   channels = p.windows.backward ? p.columns : p.inner;
    unsigned most = 0;
    for (unsigned first = 0; first < p.rows; first += kRows) {
      const Windows::Rows rows = p.windows.rows(first, std::min(first + kRows, p.rows) - 1);
      most = std::max(most, rows.end - rows.first);
    }
    return (std::size_t{filters} * (kPlaces * channels + kPitchPadding) +
            (1 + std::size_t{most} * p.windows.width) * (p.inner + kPitchPadding)) *
           sizeof(T);
  }
};

}  // namespace

bool is_window_product(const ConvolutionProblem& layer) {
  const auto is_small = [](std::size_t channels) { return channels == 16 || channels == 32 || channels == 64; };
  return layer.kernel == kSide && (layer.stride == 1 || layer.stride == 2) && layer.padding == kPadding &&
         layer.dilation == 1 && is_small(layer.channels) && is_small(layer.filters);
}

bool has_window_products() {
  return is_built(window_product<__half, 16, Pass::stored>);
}

std::unique_ptr<ConvolutionPlan> make_window_product(const ConvolutionProblem& problem, int multiprocessors) {
  if (problem.precision == Precision::fp16) return std::make_unique<WindowPlan<__half>>(problem, multiprocessors);
  return std::make_unique<WindowPlan<__nv_bfloat16>>(problem, multiprocessors);
}

}  // namespace annulus::cuda
