#include "src/onnx/tensor.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <span>

#include "kernels/base/error.h"

namespace annulus {
namespace {

using Type = onnx::TensorProto;

// Returns an element's bytes in raw_data; 0: an unsupported type.
std::size_t element_bytes(std::int32_t type) {
  switch (type) {
    case Type::BOOL:
    case Type::INT8:
    case Type::UINT8:
      return 1;
    case Type::INT16:
    case Type::UINT16:
    case Type::FLOAT16:
    case Type::BFLOAT16:
      return 2;
    case Type::INT32:
    case Type::UINT32:
    case Type::FLOAT:
      return 4;
    case Type::INT64:
    case Type::UINT64:
    case Type::DOUBLE:
      return 8;
    default:
      return 0;
  }
}

std::size_t expect_element_bytes(const onnx::TensorProto& tensor) {
  const std::size_t bytes = element_bytes(tensor.data_type());
  if (bytes == 0)
    fail("{}: tensors of type {} are not supported: use float32", tensor.name(),
         onnx::TensorProto_DataType_Name(static_cast<Type::DataType>(tensor.data_type())));
  return bytes;
}

// Returns how many elements are in the field that holds this type's values if they are not raw.
int stored_elements(const onnx::TensorProto& tensor) {
  switch (tensor.data_type()) {
    case Type::FLOAT:
      return tensor.float_data_size();
    case Type::DOUBLE:
      return tensor.double_data_size();
    case Type::INT64:
      return tensor.int64_data_size();
    case Type::UINT32:
    case Type::UINT64:
      return tensor.uint64_data_size();
    default:
      return tensor.int32_data_size();
  }
}

float half(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const float fraction = static_cast<float>(bits & 1023);
  const float sign = (bits & 0x8000) != 0 ? -1.0f : 1.0f;
  if (exponent == 31) return fraction == 0 ? sign * INFINITY : NAN;
  return sign * (exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25));
}

float brain(std::uint16_t bits) {
  return std::bit_cast<float>(std::uint32_t{bits} << 16);
}

template <class Stored, class Value>
void read_raw(const std::string& raw, std::vector<Value>& values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    Stored element;
    std::memcpy(&element, raw.data() + i * sizeof element, sizeof element);
    values[i] = static_cast<Value>(element);
  }
}

template <class Value>
void read_halves(const onnx::TensorProto& tensor, std::vector<Value>& values) {
  const auto convert = tensor.data_type() == Type::FLOAT16 ? half : brain;
  std::vector<std::uint16_t> bits(values.size());
  if (tensor.has_raw_data())
    read_raw<std::uint16_t>(tensor.raw_data(), bits);
  else
    for (std::size_t i = 0; i < bits.size(); ++i)
      bits[i] = static_cast<std::uint16_t>(tensor.int32_data(static_cast<int>(i)));
  for (std::size_t i = 0; i < bits.size(); ++i) values[i] = convert(bits[i]);
}

template <class Value>
void read_reals(const onnx::TensorProto& tensor, std::vector<Value>& values) {
  const bool raw = tensor.has_raw_data();
  if (tensor.data_type() == Type::FLOAT16 || tensor.data_type() == Type::BFLOAT16) return read_halves(tensor, values);
  if (tensor.data_type() == Type::FLOAT) {
    if (raw) return read_raw<float>(tensor.raw_data(), values);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = tensor.float_data(static_cast<int>(i));
  } else {
    if (raw) return read_raw<double>(tensor.raw_data(), values);
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<Value>(tensor.double_data(static_cast<int>(i)));
  }
}

void read_raw_wholes(const onnx::TensorProto& tensor, std::vector<std::int64_t>& values) {
  const std::string& raw = tensor.raw_data();
  switch (tensor.data_type()) {
    case Type::BOOL:
    case Type::UINT8:
      return read_raw<std::uint8_t>(raw, values);
    case Type::INT8:
      return read_raw<std::int8_t>(raw, values);
    case Type::INT16:
      return read_raw<std::int16_t>(raw, values);
    case Type::UINT16:
      return read_raw<std::uint16_t>(raw, values);
    case Type::INT32:
      return read_raw<std::int32_t>(raw, values);
    case Type::UINT32:
      return read_raw<std::uint32_t>(raw, values);
    default:
      return read_raw<std::int64_t>(raw, values);
  }
}

void read_wholes(const onnx::TensorProto& tensor, std::vector<std::int64_t>& values) {
  if (tensor.has_raw_data()) return read_raw_wholes(tensor, values);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const int at = static_cast<int>(i);
    if (tensor.data_type() == Type::INT64)
      values[i] = tensor.int64_data(at);
    else if (tensor.data_type() == Type::UINT32 || tensor.data_type() == Type::UINT64)
      values[i] = static_cast<std::int64_t>(tensor.uint64_data(at));
    else
      values[i] = tensor.int32_data(at);
  }
}

Shape shape_of(const onnx::TensorProto& tensor) {
  return {tensor.dims().begin(), tensor.dims().end()};
}

}  // namespace

HostTensor whole_numbers(Shape shape, std::vector<std::int64_t> values) {
  return {HostTensor::Kind::whole, std::move(shape), {}, std::move(values)};
}

HostTensor real_numbers(Shape shape, std::vector<double> values) {
  return {HostTensor::Kind::real, std::move(shape), std::move(values), {}};
}

Shape checked_shape(const onnx::TensorProto& tensor) {
  constexpr std::size_t kMost = std::size_t{1} << 40;
  Shape shape;
  std::size_t all = 1;
  for (const std::int64_t extent : tensor.dims()) {
    if (extent < 0) fail("{}: one of its extents is {}", tensor.name(), extent);
    shape.push_back(static_cast<std::size_t>(extent));
    if (extent > 0 && all > kMost / static_cast<std::size_t>(extent))
      fail("{}: it has too many elements", tensor.name());
    all *= shape.back();
  }
  return shape;
}

std::size_t raw_bytes(const onnx::TensorProto& tensor) {
  return elements(checked_shape(tensor)) * expect_element_bytes(tensor);
}

void expect_data(const onnx::TensorProto& tensor) {
  if (tensor.data_location() == onnx::TensorProto::EXTERNAL) fail("{}: its values are in another file", tensor.name());
  const Shape shape = checked_shape(tensor);
  const std::size_t bytes = expect_element_bytes(tensor);
  const std::size_t wanted = elements(shape);
  const std::size_t stored =
      tensor.has_raw_data() ? tensor.raw_data().size() / bytes : static_cast<std::size_t>(stored_elements(tensor));
  const bool whole = !tensor.has_raw_data() || tensor.raw_data().size() % bytes == 0;
  if (stored != wanted || !whole)
    fail("{}: it is {}, but the file has {} values of it", tensor.name(), shape.empty() ? "a number" : to_string(shape),
         stored);
}

bool is_real(const onnx::TensorProto& tensor) {
  const auto type = tensor.data_type();
  return type == Type::FLOAT || type == Type::DOUBLE || type == Type::FLOAT16 || type == Type::BFLOAT16;
}

HostTensor read_tensor(const onnx::TensorProto& tensor) {
  expect_data(tensor);
  const Shape shape = shape_of(tensor);
  if (is_real(tensor)) {
    HostTensor read = real_numbers(shape, std::vector<double>(elements(shape)));
    read_reals(tensor, read.reals);
    return read;
  }
  HostTensor read = whole_numbers(shape, std::vector<std::int64_t>(elements(shape)));
  if (tensor.data_type() == Type::BOOL) read.kind = HostTensor::Kind::truth;
  read_wholes(tensor, read.wholes);
  return read;
}

std::vector<float> read_floats(const onnx::TensorProto& tensor) {
  expect_data(tensor);
  std::vector<float> values(elements(shape_of(tensor)));
  read_reals(tensor, values);
  const auto count = std::ranges::count_if(values, [](float value) { return !std::isfinite(value); });
  if (count > 0)
    fail("{}: {} of its {} values {} NaN or infinite, which cannot be trained: export the network with finite ones",
         tensor.name(), count, values.size(), count == 1 ? "is" : "are");
  return values;
}

}  // namespace annulus
