#pragma once

#include <memory>
#include <utility>

#include "collectives/all_reduce_algorithm.h"

namespace annulus {

// Base of algorithms that pass some all-reduces on to `other`, and all else to `main`.
class Dispatch : public AllReduceAlgorithm {
 public:
  void all_reduce(std::span<float> values) override { main_->all_reduce(values); }
  void all_reduce_exact(std::span<float> values) override { main_->all_reduce_exact(values); }
  void reduce_scatter(std::span<float> values) override { main_->reduce_scatter(values); }
  void all_gather(std::span<float> values) override { main_->all_gather(values); }
  Range chunk(std::size_t count) const override { return main_->chunk(count); }
  std::span<std::byte> allocate(std::size_t bytes) override { return main_->allocate(bytes); }
  std::uint64_t bytes_sent() const override { return main_->bytes_sent() + other_->bytes_sent(); }
  void record_to(TraceLane* lane) override {
    main_->record_to(lane);
    other_->record_to(lane);
  }

 protected:
  // References, because `info` is computed from both before they are moved.
  Dispatch(Info info, std::unique_ptr<AllReduceAlgorithm>&& main, std::unique_ptr<AllReduceAlgorithm>&& other)
      : AllReduceAlgorithm(std::move(info)), main_(std::move(main)), other_(std::move(other)) {}

  AllReduceAlgorithm& other() { return *other_; }

 private:
  const std::unique_ptr<AllReduceAlgorithm> main_, other_;
};

}  // namespace annulus
