#include "kernels/cuda/runtime/layout.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/base/error.h"

namespace annulus::cuda {
namespace {

std::size_t round_up(std::size_t count, std::size_t block) {
  return (count + block - 1) / block * block;
}

}  // namespace

ChannelsLast::ChannelsLast(const Shape& shape, DataType type, std::size_t channel_block, Kind kind)
    : ChannelsLast(shape, type, channel_block, kind, cuda::channel_axis(shape)) {}

ChannelsLast::ChannelsLast(const Shape& shape, DataType type, std::size_t channel_block, Kind kind,
                           std::size_t channel_axis)
    : shape_(shape), type_(type), axis_(channel_axis), outer_(1), pixels_(1) {
  for (std::size_t i = 0; i < shape.size(); ++i)
    if (i != axis_) (i == 0 ? outer_ : pixels_) *= shape[i];
  if (kind == Kind::weights) outer_ = round_up(outer_, channel_block);
  channels_ = round_up(shape.empty() ? 1 : shape[axis_], channel_block);
}

std::string ChannelsLast::name() const {
  return fmt::format("{} x {} x {}, dimension {} of {} last, {} bytes each", outer_, pixels_, channels_, axis_,
                     shape_.size(), size_of(type_));
}

std::vector<std::size_t> ChannelsLast::strides() const {
  std::vector<std::size_t> strides(shape_.size(), 1);
  std::size_t next = channels_;
  for (std::size_t i = shape_.size(); i-- > 0;)
    if (i != axis_) {
      strides[i] = next;
      next *= shape_[i];
    }
  return strides;
}

template <class Move>
void ChannelsLast::for_each(const Move& move) const {
  const std::vector<std::size_t> strides = this->strides();
  const std::size_t all = elements(shape_);
  std::vector<std::size_t> index(shape_.size());
  std::size_t at = 0;
  for (std::size_t i = 0; i < all; ++i) {
    move(i, at);
    for (std::size_t d = shape_.size(); d-- > 0;) {
      at += strides[d];
      if (++index[d] < shape_[d]) break;
      at -= index[d] * strides[d];
      index[d] = 0;
    }
  }
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

std::size_t channel_axis(const Shape& shape) {
  if (shape.size() == 4) return 1;
  return shape.empty() ? 0 : shape.size() - 1;
}

TensorSpec value_spec(const Shape& shape, DataType type) {
  return value_spec(shape, type, channel_axis(shape));
}

TensorSpec value_spec(const Shape& shape, DataType type, std::size_t channel_axis) {
  return {shape, type,
          std::make_shared<ChannelsLast>(shape, type, channel_block(type), ChannelsLast::Kind::values, channel_axis)};
}

TensorSpec last_spec(const Shape& shape, DataType type) {
  return value_spec(shape, type, shape.empty() ? 0 : shape.size() - 1);
}

TensorSpec weights_spec(const Shape& shape, DataType type) {
  return {shape, DataType::f32,
          std::make_shared<ChannelsLast>(shape, DataType::f32, channel_block(type), ChannelsLast::Kind::weights)};
}

TensorSpec channels_spec(const Shape& shape, DataType type) {
  return channels_spec(shape, type, channel_axis(shape));
}

TensorSpec channels_spec(const Shape& shape, DataType type, std::size_t channel_axis) {
  return {shape, DataType::f32,
          std::make_shared<ChannelsLast>(shape, DataType::f32, channel_block(type), ChannelsLast::Kind::values,
                                         channel_axis)};
}

}  // namespace annulus::cuda
