#pragma once

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "collectives/host/dispatch.h"

namespace annulus {

// Dispatches each array to one of two algorithms by its size: latency matters for small arrays, bandwidth for large
// ones.
class SizeDispatch final : public Dispatch {
 public:
  // Arrays of up to `crossover_bytes` go to `small`.
  SizeDispatch(std::unique_ptr<AllReduceAlgorithm> small, std::unique_ptr<AllReduceAlgorithm> large,
               std::size_t crossover_bytes)
      : Dispatch({fmt::format("{}, up to {} bytes {}", large->info().order, crossover_bytes, small->info().order),
                  crossover_bytes, large->info().wire, large->info().halves},
                 std::move(large), std::move(small)),
        crossover_bytes_(crossover_bytes) {}

  void all_reduce(std::span<float> values) override {
    if (is_small(values))
      other().all_reduce(values);
    else
      Dispatch::all_reduce(values);
  }
  void all_reduce_exact(std::span<float> values) override {
    if (other().info().wire == WireType::fp32)
      all_reduce(values);
    else
      Dispatch::all_reduce_exact(values);
  }
  // A small array has the bits of `small`, which sums all chunks.
  void reduce_scatter(std::span<float> values) override {
    if (is_small(values))
      other().all_reduce(values);
    else
      Dispatch::reduce_scatter(values);
  }

 private:
  bool is_small(std::span<float> values) const { return values.size_bytes() <= crossover_bytes_; }

  const std::size_t crossover_bytes_;
};

}  // namespace annulus
