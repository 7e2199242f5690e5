#pragma once

#include <span>

#include "kernels/base/tensor.h"

namespace annulus::cuda {

// How tensors lie in a GPU's memory: channels innermost, as many as 16 bytes of the value type hold or a multiple of
// it. What is added is zero and stays zero: a channel of zeros with weights of zeros gives zeros, forward and backward.
// So every kernel reads and writes 16 bytes at a time, and every product has sizes that tensor cores like.
//
//   {batch, channels, height, width}  lies as {batch, height, width, channels'}
//   {batch, units}                    as {batch, units'}
//   {filters, channels, rows, columns}, {units, channels, height, width}
//                                     weights, as {filters', rows, columns, channels'}
//   {channels}                        a parameter for each channel, as {channels'}
class ChannelsLast final : public Layout {
 public:
  enum class Kind { values, weights };

  // `type` is what lies there; `channel_block` is what channels, and filters of weights, are rounded up to.
  ChannelsLast(const Shape& shape, DataType type, std::size_t channel_block, Kind kind = Kind::values);

  std::size_t bytes() const override { return count() * size_of(type_); }
  std::string name() const override;

  // Extents in memory.
  std::size_t outer() const { return outer_; }        // batch or filters'
  std::size_t pixels() const { return pixels_; }      // height x width
  std::size_t channels() const { return channels_; }  // channels'
  std::size_t count() const { return outer_ * pixels_ * channels_; }

  // Between row-major and this order, in float32, of host memory.
  void pack(std::span<const float> row_major, std::span<float> packed) const;
  void unpack(std::span<const float> packed, std::span<float> row_major) const;

 private:
  template <class Move>
  void for_each(const Move& move) const;  // move(row-major index, packed index)

  Shape shape_;
  DataType type_;
  std::size_t outer_, pixels_, channels_;
};

// Row-major, without padding: pixels and labels as they come.
class Plain final : public Layout {
 public:
  Plain(const Shape& shape, DataType type) : bytes_(elements(shape) * size_of(type)) {}
  std::size_t bytes() const override { return bytes_; }
  std::string name() const override { return "plain"; }

 private:
  std::size_t bytes_;
};

// Of a tensor that is laid out so.
const ChannelsLast& channels_last(const TensorSpec& spec);

// How many channels 16 bytes hold.
constexpr std::size_t kVectorBytes = 16;
inline std::size_t channel_block(DataType type) {
  return kVectorBytes / size_of(type);
}

TensorSpec value_spec(const Shape& shape, DataType type);

// Of a parameter: float32 in memory, channels rounded up as those of values of `type` are, so that the copies in that
// type fit them.
TensorSpec weights_spec(const Shape& shape, DataType type);   // {filters, channels, ...}
TensorSpec channels_spec(const Shape& shape, DataType type);  // {channels}

}  // namespace annulus::cuda
