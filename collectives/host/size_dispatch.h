#pragma once

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "collectives/all_reduce_algorithm.h"

namespace annulus {

// Dispatches each array to the small or the large algorithm by size: latency matters for small arrays, bandwidth for
// large arrays.
class SizeDispatch final : public AllReduceAlgorithm {
 public:
  // Arrays up to `crossover_bytes` go to `small`. Takes references, because info() is used before the algorithms are
  // moved.
  SizeDispatch(std::unique_ptr<AllReduceAlgorithm>&& small, std::unique_ptr<AllReduceAlgorithm>&& large,
               std::size_t crossover_bytes)
      : AllReduceAlgorithm(
            {fmt::format("{}, up to {} bytes {}", large->info().order, crossover_bytes, small->info().order),
             crossover_bytes, large->info().wire, large->info().all_verbs},
            large->context()),
        small_(std::move(small)),
        large_(std::move(large)),
        crossover_bytes_(crossover_bytes) {}

  // A small array gets the bits of `small`, which sums all chunks and rounds in messages even if it should be exact.
  void run(std::span<float> values, const Collective& collective) override {
    const bool is_small = values.size_bytes() <= crossover_bytes_ && collective.verb != Verb::all_gather;
    if (is_small && !(collective.exact && small_->info().wire != WireType::fp32))
      small_->all_reduce(values);
    else
      large_->run(values, collective);
  }
  Range chunk(std::size_t count) const override { return large_->chunk(count); }
  std::span<std::byte> allocate(std::size_t bytes, Memory memory) override { return large_->allocate(bytes, memory); }
  std::uint64_t bytes_sent() const override { return large_->bytes_sent() + small_->bytes_sent(); }

 private:
  const std::unique_ptr<AllReduceAlgorithm> small_, large_;
  const std::size_t crossover_bytes_;
};

}  // namespace annulus
