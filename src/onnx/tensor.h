#pragma once

#include <onnx/onnx_pb.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/tensor.h"

namespace annulus {

// A tensor with values that are known when a file is read: a constant, or computed from constants and shapes.
struct HostTensor {
  enum class Kind { real, whole, truth };

  Kind kind = Kind::whole;
  Shape shape{};
  std::vector<double> reals{};                      // if the kind is real, row-major
  std::vector<std::int64_t> wholes{};               // for other kinds; a truth is 0 or 1
  std::shared_ptr<const HostTensor> other_batch{};  // if the file computes it from the batch: see batch_constants.h

  bool real() const { return kind == Kind::real; }
  std::size_t size() const { return real() ? reals.size() : wholes.size(); }
  double at(std::size_t i) const { return real() ? reals[i] : static_cast<double>(wholes[i]); }
};

HostTensor whole_numbers(Shape shape, std::vector<std::int64_t> values);
HostTensor real_numbers(Shape shape, std::vector<double> values);

// Limit for a constant's elements: the program computes no larger constants while it reads a file.
constexpr std::size_t kMostConstantElements = std::size_t{1} << 24;

// Returns a stored tensor's shape. Throws Error if extents are negative, or if their product is too large for an
// element count.
Shape checked_shape(const onnx::TensorProto& tensor);

// Returns the bytes in a tensor's values, if they are stored as bytes. Throws Error if the type is not supported.
std::size_t raw_bytes(const onnx::TensorProto& tensor);

// Checks a stored tensor's type and data length. Throws Error naming the tensor.
void expect_data(const onnx::TensorProto& tensor);

bool is_real(const onnx::TensorProto& tensor);  // float32, float64, float16 or bfloat16

// Return a tensor's values. REQUIRES: expect_data() accepts it. read_floats() throws Error if a value is not finite.
HostTensor read_tensor(const onnx::TensorProto& tensor);
std::vector<float> read_floats(const onnx::TensorProto& tensor);

}  // namespace annulus
