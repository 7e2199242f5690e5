#include "kernels/cuda/runtime/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "kernels/base/error.h"

namespace annulus::cuda {
namespace {

std::size_t round_up(std::size_t count, std::size_t block) {
  return (count + block - 1) / block * block;
}

}  // namespace

ChannelsLast::ChannelsLast(const Shape& shape, DataType type, std::size_t channel_block, Kind kind)
    : shape_(shape), type_(type) {
  const std::size_t filters = shape.size() > 1 ? shape[0] : 1;
  outer_ = kind == Kind::weights ? round_up(filters, channel_block) : filters;
  channels_ = round_up(shape.size() > 1 ? shape[1] : shape[0], channel_block);
  pixels_ = 1;
  for (std::size_t i = 2; i < shape.size(); ++i) pixels_ *= shape[i];
}

std::string ChannelsLast::name() const {
  return fmt::format("{} x {} x {} channels last, {} bytes each", outer_, pixels_, channels_, size_of(type_));
}

template <class Move>
void ChannelsLast::for_each(const Move& move) const {
  const std::size_t filters = shape_.size() > 1 ? shape_[0] : 1;
  const std::size_t channels = shape_.size() > 1 ? shape_[1] : shape_[0];
  for (std::size_t n = 0; n < filters; ++n)
    for (std::size_t c = 0; c < channels; ++c)
      for (std::size_t pixel = 0; pixel < pixels_; ++pixel)
        move((n * channels + c) * pixels_ + pixel, (n * pixels_ + pixel) * channels_ + c);
}

void ChannelsLast::pack(std::span<const float> row_major, std::span<float> packed) const {
  std::ranges::fill(packed, 0.0f);
  for_each([&](std::size_t from, std::size_t to) { packed[to] = row_major[from]; });
}

void ChannelsLast::unpack(std::span<const float> packed, std::span<float> row_major) const {
  for_each([&](std::size_t to, std::size_t from) { row_major[to] = packed[from]; });
}

const ChannelsLast& channels_last(const TensorSpec& spec) {
  const auto* layout = dynamic_cast<const ChannelsLast*>(spec.layout.get());
  if (layout == nullptr) fail("a tensor of {} is not in channels-last layout", to_string(spec.shape));
  return *layout;
}

TensorSpec value_spec(const Shape& shape, DataType type) {
  return {shape, type, std::make_shared<ChannelsLast>(shape, type, channel_block(type))};
}

TensorSpec weights_spec(const Shape& shape, DataType type) {
  return {shape, DataType::f32,
          std::make_shared<ChannelsLast>(shape, DataType::f32, channel_block(type), ChannelsLast::Kind::weights)};
}

TensorSpec channels_spec(const Shape& shape, DataType type) {
  return {shape, DataType::f32, std::make_shared<ChannelsLast>(shape, DataType::f32, channel_block(type))};
}

}  // namespace annulus::cuda
