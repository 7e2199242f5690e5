// Our own batch normalization, optionally with the addition and the ReLU at the end of a residual block. It is bound by
// memory: it reads the input twice, while oneDNN's reads it three times and does not support the addition. (Every value
// depends on the channel's statistics, so two passes are needed in any case.) A few channels at a time go through both
// passes, so the second pass finds the first pass's input in the cache.

#include <omp.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "kernels/base/split.h"
#include "kernels/cpu/loops/for_each_element.h"
#include "kernels/cpu/loops/vectors.h"
#include "kernels/cpu/plan/dnnl_memory.h"
#include "kernels/cpu/plan/operations.h"
#include "kernels/neighbour_fusion.h"

namespace annulus::cpu {
namespace {

enum Index { kScale, kShift, kMean, kVariance, kCount };

// Partial results for a channel in a plane. All planes have the same pixel count.
struct Moments {
  float mean, squares;  // squares: sum of the squared distances to that mean
};
struct GradientSums {
  float plain, by_distance;  // sums of the output's gradient, and of this times the input's distance to the mean
};

// Converts a vector's `mask` (0 or -1 in each lane) to a bit for each lane; mask_of() converts back.
template <std::size_t block>
std::uint8_t bits_of(typename Lanes<block>::Ints mask) {
  std::uint8_t bits = 0;
  for (std::size_t i = 0; i < block; ++i) bits |= static_cast<std::uint8_t>((mask[i] & 1) << i);
  return bits;
}
template <>
std::uint8_t bits_of<kVector>(Lanes<kVector>::Ints mask) {
  const auto bytes = __builtin_convertvector(mask, Lanes<kVector>::Bytes);
  std::uint64_t word;
  static_assert(sizeof bytes == sizeof word);
  __builtin_memcpy(&word, &bytes, sizeof word);
  // The lowest bit of byte i moves to bit 56 + i, and no other bit does.
  return static_cast<std::uint8_t>(((word & 0x0101010101010101) * 0x0102040810204080) >> 56);
}
template <std::size_t block>
typename Lanes<block>::Ints mask_of(std::uint8_t bits) {
  typename Lanes<block>::Ints lane;
  for (std::size_t i = 0; i < block; ++i) lane[i] = 1 << i;
  return (lane & bits) != 0;
}

// Images consist of planes: all pixels of a few channels that are adjacent in memory. Sums are computed for each plane,
// and then over the planes in their order, so they do not depend on the number of threads.
class BatchNormOp : public Op, public NeighbourFusion {
 public:
  BatchNormOp(const BatchNorm& operation, const Specs& inputs, Mode mode)
      : operation_(operation),
        training_(mode == Mode::training),
        layout_(desc(inputs[0])),
        added_layout_(desc(inputs.back())),
        batch_(inputs[0].shape[0]),
        channels_(inputs[0].shape[1]) {
    const ImageLayout images = image_layout(inputs[0]);
    pixels_ = images.height * images.width;
    middle_ = images.height / 2 * images.width + images.width / 2;
    inner_ = images.inner;
    blocks_ = images.outer / batch_;
    vectors_ = inner_ % kVector == 0;
    info_.output = inputs[0];
    info_.parameters.assign(kCount, spec({channels_}, plain_layout({channels_})));
    for (auto* each : {&mean_, &variance_, &factor_, &slope_, &offset_}) each->resize(blocks_ * inner_);
    partial_layout_ = plain_layout({2 * images.outer * inner_});
    const bool same_layout = layout_ == added_layout_;
    info_.inputs = {{.output_may_overwrite = true, .gradient_may_overwrite = !operation.add}};
    if (operation.add)
      info_.inputs.push_back(
          {.backward_reads = false, .output_may_overwrite = same_layout, .gradient_may_overwrite = same_layout});
    info_.backward_reads_output = false;
    info_.skips_parameter_gradients = true;
    info_.fused.second_gradient = true;
    info_.sums_over_ranks = operation.synchronized && training_;
    info_.scratch_bytes = Scratch::bytes({partial_layout_, Adapted::copy(added_layout_, layout_)});
    info_.implementations = Adapted::implementations(added_layout_, layout_);
    if (info_.sums_over_ranks) shared_.resize(2 * channels_ + 1);
  }

  void sum_over_ranks(const SumOverRanks& sum) override { sum_over_ranks_ = sum; }

  void bind_neighbours(const NeighbourBindings& bindings) override {
    second_output_gradient_ = floats(bindings.second_output_gradient).data();
  }

  void bind(const Bindings& bindings) override {
    Scratch scratch(bindings.scratch);
    partial_ = static_cast<float*>(scratch.take(partial_layout_).get_data_handle());
    input_ = floats(bindings.inputs[0]).data();
    output_values_ = floats(bindings.output).data();
    for (std::size_t i = 0; i < kCount; ++i) parameter_values_[i] = floats(bindings.parameters[i]).data();
    Scratch for_addend = scratch, for_addend_gradient = scratch;
    if (operation_.add) added_ = {added_layout_, layout_, bindings.inputs[1], for_addend};
    addend_ = values(added_);
    if (!training_) return;
    if (operation_.relu) positive_.resize(batch_ * blocks_ * pixels_ * inner_ / (vectors_ ? kVector : 1));
    for (std::size_t i = 0; i < kCount; ++i) parameter_gradients_[i] = floats(bindings.parameter_gradients[i]).data();
    output_gradient_ = floats(bindings.output_gradient).data();
    input_gradient_ = floats(bindings.input_gradients[0]).data();
    if (operation_.add && bindings.input_gradients[1])
      added_gradient_ = {added_layout_, layout_, bindings.input_gradients[1], for_addend_gradient};
    addend_gradient_ = values(added_gradient_);
    if (addend_gradient_ == output_gradient_) addend_gradient_ = nullptr;  // same memory, so nothing to write
  }

  void forward() override {
    added_.load();
    vectors_ ? forward_of<kVector>() : forward_of<1>();
  }

  void backward(float sample_weight) override {
    vectors_ ? backward_of<kVector>(sample_weight) : backward_of<1>(sample_weight);
    added_gradient_.store();
  }

 private:
  static float* values(const Adapted& adapted) {
    return adapted.wanted() ? static_cast<float*>(adapted.wanted().get_data_handle()) : nullptr;
  }

  template <std::size_t block>
  void forward_of() {
    const auto sum_one = [this](std::size_t plane) { sum_moments<block>(plane); };
    const auto normalize_one = [this](std::size_t plane) { normalize<block>(plane); };
    const auto nothing = [](std::size_t) {};
    if (info_.sums_over_ranks) {
      in_rounds(
          sum_one, [this](std::size_t channel) { share_moments(channel); }, nothing);
      shared_.back() = static_cast<float>(batch_);
      share(shared_.size());
      in_rounds(
          nothing, [this](std::size_t channel) { finish_shared_moments(channel); }, normalize_one);
    } else if (training_ && !operation_.frozen_statistics) {
      in_rounds(
          sum_one, [this](std::size_t channel) { finish_moments(channel); }, normalize_one);
    } else {
      const auto& running = parameter_values_;
      in_rounds(
          nothing, [&](std::size_t c) { set_forward(c, running[kMean][c], running[kVariance][c]); }, normalize_one);
    }
  }

  template <std::size_t block>
  void backward_of(float sample_weight) {
    const auto sum_one = [this](std::size_t plane) { sum_gradients<block>(plane); };
    const auto write_one = [this](std::size_t plane) {
      if (input_gradient_ != nullptr) write_input_gradient<block>(plane);
    };
    const auto nothing = [](std::size_t) {};
    if (info_.sums_over_ranks) {
      in_rounds(
          sum_one, [=, this](std::size_t channel) { share_gradients(channel, sample_weight); }, nothing);
      share(2 * channels_);  // the image count is known
      in_rounds(
          nothing, [this](std::size_t c) { set_backward(c, shared(0, c), shared(1, c)); }, write_one);
    } else {
      in_rounds(
          sum_one, [=, this](std::size_t channel) { finish_gradients(channel, sample_weight); }, write_one);
    }
  }

  // All-reduces a synchronized batch norm's data: two sums for each channel, and how many images they cover. (The value
  // count would be too large for float32.)
  void share(std::size_t count) {
    if (sum_over_ranks_) sum_over_ranks_({reinterpret_cast<std::byte*>(shared_.data()), count * sizeof(float)});
  }
  double shared(std::size_t sum, std::size_t channel) const {
    return static_cast<double>(shared_[sum * channels_ + channel]);
  }
  void set_shared(std::size_t channel, double first, double second) {
    shared_[channel] = static_cast<float>(first);
    shared_[channels_ + channel] = static_cast<float>(second);
  }

  // Returns how many values each channel's statistics cover.
  double count() const {
    const auto images = info_.sums_over_ranks ? static_cast<double>(shared_.back()) : static_cast<double>(batch_);
    return images * static_cast<double>(pixels_);
  }

  // Processes the channel blocks in rounds with data that fit into the threads' caches. In each round, calls `first`
  // for all planes, `between` for all channels, and then `second` for all planes; a thread has the same planes in both.
  template <class First, class Between, class Second>
  void in_rounds(const First& first, const Between& between, const Second& second) const {
    constexpr std::size_t kCached = 1 << 16;  // floats for a thread
    const std::size_t block = batch_ * pixels_ * inner_;
#pragma omp parallel if (block * blocks_ >= static_cast <std::size_t>(kParallelElements))
    {
      const auto threads = static_cast<std::size_t>(omp_get_num_threads());
      const auto thread = static_cast<std::size_t>(omp_get_thread_num());
      const std::size_t together = std::max({std::size_t{1}, kCached * threads / block, threads / batch_});
      for (std::size_t begin = 0; begin < blocks_; begin += together) {
        const std::size_t count = std::min(together, blocks_ - begin);
        const Range planes = split(count * batch_, threads, thread);
        const auto plane = [&](std::size_t i) { return i % batch_ * blocks_ + begin + i / batch_; };
        for (std::size_t i = planes.begin; i < planes.end; ++i) first(plane(i));
#pragma omp barrier
        const Range channels = split(count * inner_, threads, thread);
        for (std::size_t i = channels.begin; i < channels.end; ++i)
          if (begin * inner_ + i < channels_) between(begin * inner_ + i);
#pragma omp barrier
        for (std::size_t i = planes.begin; i < planes.end; ++i) second(plane(i));
      }
    }
  }

  // Calls body(lane) for the first lane in each vector of a plane's channels.
  template <std::size_t block, class Body>
  void for_each_vector_of(const Body& body) const {
    for (std::size_t lane = 0; lane < inner_; lane += block) body(lane);
  }

  // Adds up distances to the value in the middle of the plane instead of values, because their squares are small. Near
  // the border, padding makes values less typical.
  template <std::size_t block>
  void sum_moments(std::size_t plane) {
    using Floats = typename Lanes<block>::Floats;
    for_each_vector_of<block>([&](std::size_t lane) {
      const float* from = input_ + plane * pixels_ * inner_ + lane;
      const auto middle = load<Floats>(from + middle_ * inner_);
      const auto [sum, squares] = two_sums<block>([&](std::size_t pixel) {
        const Floats distance = load<Floats>(from + pixel * inner_) - middle;
        return std::array{distance, distance * distance};
      });
      const Floats mean = sum / static_cast<float>(pixels_);
      const Floats rest = squares - sum * mean;
      put<block>(plane, lane, middle + mean, rest < 0 ? Floats{} : rest);
    });
  }

  // Returns the mean over this rank's batch, and the sum of squared distances to it.
  std::pair<double, double> moments(std::size_t channel) const {
    const auto images = static_cast<double>(batch_), pixels = static_cast<double>(pixels_);
    double mean = 0, squares = 0;
    for_each_partial<Moments>(channel, [&](const Moments& m) { mean += static_cast<double>(m.mean) / images; });
    for_each_partial<Moments>(channel, [&](const Moments& m) {
      const double distance = static_cast<double>(m.mean) - mean;
      squares += static_cast<double>(m.squares) + pixels * distance * distance;
    });
    return {mean, squares};
  }

  void finish_moments(std::size_t channel) {
    const auto [mean, squares] = moments(channel);
    set_forward(channel, static_cast<float>(mean), static_cast<float>(squares / count()));
  }

  // Sums the distances to the running mean, which is the same on all ranks, and the squared distances. Means close to
  // it lose no precision.
  void share_moments(std::size_t channel) {
    const auto [mean, squares] = moments(channel);
    const double distance = mean - static_cast<double>(parameter_values_[kMean][channel]);
    const double sum = static_cast<double>(batch_ * pixels_) * distance;
    set_shared(channel, sum, squares + sum * distance);
  }

  void finish_shared_moments(std::size_t channel) {
    const double distance = shared(0, channel) / count();
    const double variance = std::max(shared(1, channel) / count() - distance * distance, 0.0);
    set_forward(channel, parameter_values_[kMean][channel] + static_cast<float>(distance),
                static_cast<float>(variance));
  }

  // output = slope (input - mean) + offset
  void set_forward(std::size_t channel, float mean, float variance) {
    mean_[channel] = mean;
    variance_[channel] = variance;
    slope_[channel] = parameter_values_[kScale][channel] * inverse(channel);
    offset_[channel] = parameter_values_[kShift][channel];
  }

  float inverse(std::size_t channel) const {
    return 1 / std::sqrt(variance_[channel] + operation_.epsilon);
  }

  template <std::size_t block>
  void normalize(std::size_t plane) {
    using Floats = typename Lanes<block>::Floats;
    for_each_vector_of<block>([&](std::size_t lane) {
      const auto mean = coefficient<block>(mean_, plane, lane), slope = coefficient<block>(slope_, plane, lane),
                 offset = coefficient<block>(offset_, plane, lane);
      for_each_pixel(plane, lane, [&](std::size_t at) {
        Floats value = slope * (load<Floats>(input_ + at) - mean) + offset;
        if (addend_ != nullptr) value += load<Floats>(addend_ + at);
        if (operation_.relu) {
          if (!positive_.empty()) positive_[at / block] = bits_of<block>(value > 0);
          value = value < 0 ? Floats{} : value;  // NaN passes, so divergence is not hidden
        }
        store(value, output_values_ + at);
      });
    });
  }

  // Zeroes the output's gradient in place where the ReLU was inactive.
  template <std::size_t block>
  void sum_gradients(std::size_t plane) {
    using Floats = typename Lanes<block>::Floats;
    const bool changed = second_output_gradient_ != nullptr || operation_.relu;
    for_each_vector_of<block>([&](std::size_t lane) {
      const auto mean = coefficient<block>(mean_, plane, lane);
      const std::size_t begin = plane * pixels_ * inner_ + lane;
      const auto [plain, by_distance] = two_sums<block>([&](std::size_t pixel) {
        const std::size_t at = begin + pixel * inner_;
        auto gradient = load<Floats>(output_gradient_ + at);
        if (second_output_gradient_ != nullptr) gradient += load<Floats>(second_output_gradient_ + at);
        if (operation_.relu) gradient = mask_of<block>(positive_[at / block]) ? gradient : Floats{};
        if (changed) store(gradient, output_gradient_ + at);
        if (addend_gradient_ != nullptr) store(gradient, addend_gradient_ + at);
        return std::array{gradient, gradient * (load<Floats>(input_ + at) - mean)};
      });
      put<block>(plane, lane, plain, by_distance);
    });
  }

  void finish_gradients(std::size_t channel, float sample_weight) {
    const auto [plain, by_distance] = gradient_sums(channel);
    set_gradients(channel, plain, by_distance, sample_weight);
    if (operation_.frozen_statistics)  // they do not depend on the input
      set_backward(channel, 0, 0);
    else
      set_backward(channel, plain, by_distance);
  }

  // The parameters' gradients are all-reduced later with all others, but the input's gradient needs these sums now.
  void share_gradients(std::size_t channel, float sample_weight) {
    const auto [plain, by_distance] = gradient_sums(channel);
    set_gradients(channel, plain, by_distance, sample_weight);
    set_shared(channel, plain, by_distance);
  }

  // Returns GradientSums over this rank's batch.
  std::pair<double, double> gradient_sums(std::size_t channel) const {
    double plain = 0, by_distance = 0;
    for_each_partial<GradientSums>(channel, [&](const GradientSums& sums) {
      plain += static_cast<double>(sums.plain);
      by_distance += static_cast<double>(sums.by_distance);
    });
    return {plain, by_distance};
  }

  void set_gradients(std::size_t channel, double plain, double by_distance, float sample_weight) {
    if (parameter_gradients_[0] == nullptr) return;
    parameter_gradients_[kScale][channel] = inverse(channel) * static_cast<float>(by_distance);
    parameter_gradients_[kShift][channel] = static_cast<float>(plain);
    // This rank's contribution to the mean over the global batch. Inference needs the unbiased variance; the batch's is
    // smaller by a factor of (n - 1) / n.
    const float weight = static_cast<float>(batch_) * sample_weight;
    const auto unbias = static_cast<float>(count() / std::max(count() - 1, 1.0));
    parameter_gradients_[kMean][channel] = mean_[channel] * weight;
    parameter_gradients_[kVariance][channel] = variance_[channel] * (weight * unbias);
  }

  // With n values, the input's gradient is
  //   scale inverse (gradient - sum(gradient) / n - (input - mean) inverse^2 sum(gradient (input - mean)) / n).
  void set_backward(std::size_t channel, double plain, double by_distance) {
    const float own_inverse = inverse(channel);
    const float factor = parameter_values_[kScale][channel] * own_inverse;
    factor_[channel] = factor;
    slope_[channel] = -factor * own_inverse * own_inverse * static_cast<float>(by_distance / count());
    offset_[channel] = -factor * static_cast<float>(plain / count());
  }

  template <std::size_t block>
  void write_input_gradient(std::size_t plane) {
    using Floats = typename Lanes<block>::Floats;
    for_each_vector_of<block>([&](std::size_t lane) {
      const auto mean = coefficient<block>(mean_, plane, lane), factor = coefficient<block>(factor_, plane, lane),
                 slope = coefficient<block>(slope_, plane, lane), offset = coefficient<block>(offset_, plane, lane);
      for_each_pixel(plane, lane, [&](std::size_t at) {
        const Floats distance = load<Floats>(input_ + at) - mean;
        store(factor * load<Floats>(output_gradient_ + at) + (slope * distance + offset), input_gradient_ + at);
      });
    });
  }

  // Returns the sums over a plane's pixels of the two numbers that terms(pixel) returns. Chains are independent sums,
  // so that no addition waits for the previous addition; they are short, so that rounding errors stay small in large
  // images.
  template <std::size_t block, class Terms>
  auto two_sums(const Terms& terms) const {
    using Floats = typename Lanes<block>::Floats;
    constexpr std::size_t kChains = 4, kLength = 64;
    std::array<Floats, 2> total{};
    for (std::size_t pixel = 0; pixel < pixels_;) {
      const std::size_t end = std::min(pixel + kChains * kLength, pixels_);
      Floats first[kChains]{}, second[kChains]{};
      const auto add = [&](std::size_t chain) {
        const std::array<Floats, 2> added = terms(pixel++);
        first[chain] += added[0];
        second[chain] += added[1];
      };
      while (pixel + kChains <= end)
        for (std::size_t chain = 0; chain < kChains; ++chain) add(chain);
      while (pixel < end) add(0);
      total[0] += (first[0] + first[1]) + (first[2] + first[3]);
      total[1] += (second[0] + second[1]) + (second[2] + second[3]);
    }
    return total;
  }

  // Calls body(index) for a plane's pixels.
  template <class Body>
  void for_each_pixel(std::size_t plane, std::size_t lane, const Body& body) const {
    const std::size_t begin = plane * pixels_ * inner_ + lane;
    for (std::size_t pixel = 0; pixel < pixels_; ++pixel) body(begin + pixel * inner_);
  }

  template <std::size_t block>
  typename Lanes<block>::Floats coefficient(const std::vector<float>& of_channels, std::size_t plane,
                                            std::size_t lane) const {
    return load<typename Lanes<block>::Floats>(of_channels.data() + plane % blocks_ * inner_ + lane);
  }

  // Stores two adjacent numbers for each channel in a plane.
  template <std::size_t block>
  void put(std::size_t plane, std::size_t lane, typename Lanes<block>::Floats first,
           typename Lanes<block>::Floats second) {
    for (std::size_t i = 0; i < block; ++i) {
      float* to = partial_ + 2 * (plane * inner_ + lane + i);
      to[0] = first[i];
      to[1] = second[i];
    }
  }
  template <class Pair, class Body>
  void for_each_partial(std::size_t channel, const Body& body) const {
    for (std::size_t image = 0; image < batch_; ++image) {
      const std::size_t plane = image * blocks_ + channel / inner_;
      const float* from = partial_ + 2 * (plane * inner_ + channel % inner_);
      body(Pair{from[0], from[1]});
    }
  }

  BatchNorm operation_;
  bool training_;
  dnnl::memory::desc layout_, added_layout_, partial_layout_;
  std::size_t batch_, channels_;
  std::size_t pixels_, middle_;                                   // in a plane; the index of the middle pixel
  std::size_t inner_, blocks_;                                    // channels in a plane; planes in an image
  bool vectors_;                                                  // whether a plane's channels fill vectors
  std::vector<float> mean_, variance_, factor_, slope_, offset_;  // for each channel; zero for padding channels
  std::vector<std::uint8_t> positive_;  // a bit for each positive output, a byte for each vector
  Adapted added_, added_gradient_;
  float* partial_ = nullptr;
  const float *input_ = nullptr, *addend_ = nullptr;
  float* output_values_ = nullptr;
  float* output_gradient_ = nullptr;
  const float* second_output_gradient_ = nullptr;
  float *input_gradient_ = nullptr, *addend_gradient_ = nullptr;
  const float* parameter_values_[kCount]{};
  float* parameter_gradients_[kCount]{};
  std::vector<float> shared_;  // see share()
  SumOverRanks sum_over_ranks_;
};

}  // namespace

std::unique_ptr<Op> plan(const BatchNorm& operation, const Specs& inputs, Mode mode, const Specs&) {
  return std::make_unique<BatchNormOp>(operation, inputs, mode);
}

}  // namespace annulus::cpu
