#pragma once

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "collectives/all_reduce_algorithm.h"

namespace annulus {

// Dispatches each array to one of two algorithms by its size: latency matters for small arrays, bandwidth for large
// ones.
class SizeDispatch final : public AllReduceAlgorithm {
 public:
  // Arrays of up to `crossover_bytes` go to `small`. References, because their info() is used before they are moved.
  SizeDispatch(std::unique_ptr<AllReduceAlgorithm>&& small, std::unique_ptr<AllReduceAlgorithm>&& large,
               std::size_t crossover_bytes)
      : AllReduceAlgorithm(
            {fmt::format("{}, up to {} bytes {}", large->info().order, crossover_bytes, small->info().order),
             crossover_bytes, large->info().wire, large->info().halves}),
        small_(std::move(small)),
        large_(std::move(large)),
        crossover_bytes_(crossover_bytes) {}

  void all_reduce(std::span<float> values) override { by_size(values).all_reduce(values); }
  void all_reduce_exact(std::span<float> values) override {
    if (small_->info().wire == WireType::fp32)
      all_reduce(values);
    else
      large_->all_reduce_exact(values);
  }
  // A small array has the bits of `small`, which sums all chunks.
  void reduce_scatter(std::span<float> values) override {
    if (is_small(values))
      small_->all_reduce(values);
    else
      large_->reduce_scatter(values);
  }
  void all_gather(std::span<float> values) override { large_->all_gather(values); }
  Range chunk(std::size_t count) const override { return large_->chunk(count); }
  std::span<std::byte> allocate(std::size_t bytes) override { return large_->allocate(bytes); }
  std::uint64_t bytes_sent() const override { return large_->bytes_sent() + small_->bytes_sent(); }
  void record_to(TraceLane* lane) override {
    large_->record_to(lane);
    small_->record_to(lane);
  }

 private:
  bool is_small(std::span<float> values) const { return values.size_bytes() <= crossover_bytes_; }
  AllReduceAlgorithm& by_size(std::span<float> values) const { return is_small(values) ? *small_ : *large_; }

  const std::unique_ptr<AllReduceAlgorithm> small_, large_;
  const std::size_t crossover_bytes_;
};

}  // namespace annulus
