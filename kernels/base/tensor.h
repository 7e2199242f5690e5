#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace annulus {

// Sizes, outermost first. Images are {batch, channels, height, width}, independent of a device's layout in memory.
using Shape = std::vector<std::size_t>;
using Shapes = std::vector<Shape>;

std::size_t elements(const Shape& shape);
std::string to_string(const Shape& shape);  // "64x1x28x28"

enum class DataType { f32, f16, bf16, i32, u8 };
std::size_t size_of(DataType type);  // in bytes

// A tensor's layout in a device's memory. It is opaque outside kernels/.
class Layout {
 public:
  virtual ~Layout() = default;
  virtual std::size_t bytes() const = 0;  // padding included
  virtual std::string name() const = 0;   // equal names mean equal layouts
};

struct TensorSpec {
  Shape shape;
  DataType type = DataType::f32;
  std::shared_ptr<const Layout> layout;
};

// A view of device memory. It has no operator[], because only the device may access the contents.
struct DeviceView {
  std::byte* address = nullptr;
  std::size_t bytes = 0;

  explicit operator bool() const { return address != nullptr; }
  DeviceView slice(std::size_t offset, std::size_t length) const { return {address + offset, length}; }
};

// Owns device memory.
class Buffer {
 public:
  using Release = void (*)(std::byte*);

  Buffer() = default;
  Buffer(std::byte* address, std::size_t bytes, Release release) : memory_(address, release), bytes_(bytes) {}

  DeviceView view() const { return {memory_.get(), bytes_}; }

 private:
  std::unique_ptr<std::byte, Release> memory_{nullptr, [](std::byte*) {}};
  std::size_t bytes_ = 0;
};

}  // namespace annulus
