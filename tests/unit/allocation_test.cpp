// A step allocates nothing of a tensor's size. (oneDNN makes small allocations when it runs a primitive.)

#include <atomic>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <new>

#include "models/network/model.h"
#include "models/zoo/zoo.h"
#include "src/step/optimizer.h"

namespace {

constexpr std::size_t kSmall = 4096;
std::atomic<std::size_t> large_allocations = 0;

void* allocate(std::size_t bytes) {
  if (bytes > kSmall) ++large_allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}

}  // namespace

// Replaced in the whole test program. Every form without an alignment, so that they are consistent.
void* operator new(std::size_t bytes) {
  return allocate(bytes);
}
void* operator new[](std::size_t bytes) {
  return allocate(bytes);
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return std::malloc(bytes);
}
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return std::malloc(bytes);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete[](void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, const std::nothrow_t&) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, const std::nothrow_t&) noexcept {
  std::free(memory);
}

namespace annulus {

TEST_CASE("a training step allocates nothing") {
  const std::string name = GENERATE("lenet", "resnet20", "vit_tiny");
  const Task task{{28, 28, 1}, {0.5f}, {0.5f}, 10};
  const auto device = make_device("cpu", 1);
  Model model(*device, make_model(name, task), Mode::training, 16);
  model.parameters().initialize(1);
  Optimizer optimizer(*device, model.parameters(), Sgd{.momentum = 0.9f}, 0.01f);
  Network& network = model.network(Mode::training, 16);
  const std::vector<std::uint8_t> images(16 * 28 * 28, 100);
  const std::vector<std::int32_t> labels(16, 3);
  const Range all{0, model.parameters().gradients().bytes / sizeof(float)};
  const auto step = [&] {
    network.load(images, {labels});
    network.forward();
    network.backward(1.0f / 16);
    optimizer.update(all);
  };
  step();
  const std::size_t before = large_allocations;
  step();
  CHECK(large_allocations == before);
}

TEST_CASE("the allocation counter counts every allocation") {
  const std::size_t before = large_allocations;
  const std::vector<char> large(kSmall + 1);
  CHECK(large_allocations == before + 1);
}

}  // namespace annulus
