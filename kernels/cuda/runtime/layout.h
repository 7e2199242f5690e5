#pragma once

#include <span>
#include <vector>

#include "kernels/base/tensor.h"

namespace annulus::cuda {

// The layout of tensors in a GPU's memory: the channels' dimension is innermost, padded to a multiple of the values
// that 16 bytes hold. Other dimensions keep their order. Padding is zero and stays zero: a zero channel with zero
// weights gives zeros, forward and backward. So every kernel reads and writes 16 bytes at a time, and every product
// has sizes that suit tensor cores.
//
// The channels are dimension 1 of four, else the last dimension, unless an operation chooses otherwise for an output:
//
//   {batch, channels, height, width}  is stored as {batch, height, width, channels'}
//   {batch, units}                    as {batch, units'}
//   {batch, tokens, features}         as {batch, tokens, features'}
//   {filters, channels, rows, columns}, {units, channels, height, width}
//                                     (weights) as {filters', rows, columns, channels'}
//   {channels}                        (a parameter for each channel) as {channels'}
class ChannelsLast final : public Layout {
 public:
  enum class Kind { values, weights };

  // `type` is the elements' type. Channels, and weights' filters, are rounded up to multiples of `channel_block`.
  ChannelsLast(const Shape& shape, DataType type, std::size_t channel_block, Kind kind = Kind::values);
  ChannelsLast(const Shape& shape, DataType type, std::size_t channel_block, Kind kind, std::size_t channel_axis);

  std::size_t bytes() const override { return count() * size_of(type_); }
  std::string name() const override;

  const Shape& shape() const { return shape_; }
  std::size_t axis() const { return axis_; }  // the channels' dimension

  // Extents in memory.
  std::size_t outer() const { return outer_; }        // the first dimension, such as batch or filters'; or 1
  std::size_t pixels() const { return pixels_; }      // the other dimensions' product, such as height x width
  std::size_t channels() const { return channels_; }  // channels'
  std::size_t rows() const { return outer_ * pixels_; }
  std::size_t count() const { return rows() * channels_; }

  // The distance in memory, in elements, between neighbours along each dimension.
  std::vector<std::size_t> strides() const;

  // Convert float32 host memory between row-major order and this layout.
  void pack(std::span<const float> row_major, std::span<float> packed) const;
  void unpack(std::span<const float> packed, std::span<float> row_major) const;

 private:
  template <class Move>
  void for_each(const Move& move) const;  // move(row-major index, packed index)

  Shape shape_;
  DataType type_;
  std::size_t axis_, outer_, pixels_, channels_;
};

// Row-major, without padding: pixels and labels.
class Plain final : public Layout {
 public:
  Plain(const Shape& shape, DataType type) : bytes_(elements(shape) * size_of(type)) {}
  std::size_t bytes() const override { return bytes_; }
  std::string name() const override { return "plain"; }

 private:
  std::size_t bytes_;
};

// Returns a tensor's layout. REQUIRES: it is ChannelsLast.
const ChannelsLast& channels_last(const TensorSpec& spec);

// How many channels 16 bytes hold.
constexpr std::size_t kVectorBytes = 16;
inline std::size_t channel_block(DataType type) {
  return kVectorBytes / size_of(type);
}

TensorSpec value_spec(const Shape& shape, DataType type);
TensorSpec value_spec(const Shape& shape, DataType type, std::size_t channel_axis);
TensorSpec last_spec(const Shape& shape, DataType type);  // the channels are the last dimension

// The channels' dimension, unless an operation chooses another.
std::size_t channel_axis(const Shape& shape);

// Specs for parameters: float32 in memory, with channels rounded up as for values in `type`, so that copies in that
// type have the same order.
TensorSpec weights_spec(const Shape& shape, DataType type);   // {filters, channels, ...}
TensorSpec channels_spec(const Shape& shape, DataType type);  // {channels}, or in the values' order
TensorSpec channels_spec(const Shape& shape, DataType type, std::size_t channel_axis);

}  // namespace annulus::cuda
