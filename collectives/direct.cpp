#include "collectives/direct.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "kernels/split.h"

namespace annulus {
namespace {

constexpr std::size_t kStageBytes = 1024 * 1024;  // pieces of arrays that lie elsewhere
constexpr std::size_t kBlock = 2048;  // floats that are added at a time: they and their sum fit the L1 cache

float* floats(std::byte* bytes, std::size_t offset = 0) {
  return reinterpret_cast<float*>(bytes) + offset;
}

// to = a + b. `to` may be `a` or `b` themselves, but must not overlap them otherwise.
void sum_of_two(const float* a, const float* b, float* to, std::size_t count) {
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i) to[i] = a[i] + b[i];
}

// Both become a + b. They do not overlap.
void sum_into_both(float* a, float* b, std::size_t count) {
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i) a[i] = b[i] = a[i] + b[i];
}

// The sum of `count` floats at `offset` of every array, in the arrays' order, to `to`.
void sum_of_all(std::span<std::byte* const> arrays, std::size_t offset, std::size_t count, float* to) {
  sum_of_two(floats(arrays[0], offset), floats(arrays[1], offset), to, count);
  for (const auto array : arrays.subspan(2)) sum_of_two(to, floats(array, offset), to, count);
}

}  // namespace

Direct::Direct(World node, std::unique_ptr<SumAlgorithm> across_nodes, std::shared_ptr<Patience> patience)
    : memory_(std::move(node)), across_nodes_(std::move(across_nodes)), patience_(std::move(patience)) {
  const auto own = memory_.allocate(sizeof(Signals));
  new (own.data()) Signals;
  for (std::byte* address : memory_.everywhere(own)) signals_.push_back(reinterpret_cast<Signals*>(address));
  for (auto& copy : copies_) copy = memory_.allocate(kSmallBytes);
  stage_ = memory_.allocate(kStageBytes);
  memory_.node().barrier();  // everybody's signals are there
}

void Direct::record_to(TraceLane* lane) {
  SumAlgorithm::record_to(lane);
  if (across_nodes_) across_nodes_->record_to(lane);
}

void Direct::sum(std::span<float> values) {
  if (values.size_bytes() <= kSmallBytes) return sum_copies(values);
  const auto arrays = memory_.everywhere(std::as_bytes(values));
  if (arrays.empty()) return sum_staged(values);
  sum_in_place(arrays, values.size());
}

// The copies are taken in turns, which makes one moment of waiting enough: a rank writes its copy for sum s + 2 after
// all ranks arrived at s + 1, and they did that after reading what it wrote for s.
void Direct::sum_copies(std::span<float> values) {
  ++sums_;
  const auto own = copies_[sums_ % 2];
  std::memcpy(own.data(), values.data(), values.size_bytes());
  await_all(&Signals::arrived, 1, 1);
  sum_of_all(memory_.everywhere(own), 0, values.size(), values.data());
  if (across_nodes_) across_nodes_->sum(values);
  signals(memory_.node().rank()).done.raise(sums_);  // nobody waits for it; it keeps in step with `arrived`
}

void Direct::sum_in_place(std::span<std::byte* const> arrays, std::size_t count) {
  ++sums_;
  await_all(&Signals::arrived, 1, 2);
  const auto rank = static_cast<std::size_t>(memory_.node().rank());
  const Range chunk = split(count, arrays.size(), rank);
  if (across_nodes_)
    sum_chunk_across_nodes(arrays, chunk);
  else
    sum_chunk(arrays, chunk);
  await_all(&Signals::done, 2, 2);
}

// Each array is read once and written once: of two, while their sum is in a register; of more, block by block through
// the L1 cache.
void Direct::sum_chunk(std::span<std::byte* const> arrays, const Range& chunk) {
  if (arrays.size() == 2)
    return sum_into_both(floats(arrays[0], chunk.begin), floats(arrays[1], chunk.begin), chunk.size());
  alignas(64) float block[kBlock];
  for (std::size_t begin = chunk.begin; begin < chunk.end; begin += kBlock) {
    const std::size_t size = std::min(kBlock, chunk.end - begin);
    sum_of_all(arrays, begin, size, block);
    for (std::byte* array : arrays) std::memcpy(floats(array, begin), block, size * sizeof(float));
  }
}

void Direct::sum_chunk_across_nodes(std::span<std::byte* const> arrays, const Range& chunk) {
  const auto own = static_cast<std::size_t>(memory_.node().rank());
  float* const sum = floats(arrays[own], chunk.begin);
  alignas(64) float block[kBlock];
  for (std::size_t begin = chunk.begin; begin < chunk.end; begin += kBlock) {
    const std::size_t size = std::min(kBlock, chunk.end - begin);
    sum_of_all(arrays, begin, size, block);
    std::memcpy(floats(arrays[own], begin), block, size * sizeof(float));
  }
  across_nodes_->sum({sum, chunk.size()});
  for (std::size_t rank = 0; rank < arrays.size(); ++rank)
    if (rank != own) std::memcpy(floats(arrays[rank], chunk.begin), sum, chunk.size() * sizeof(float));
}

void Direct::sum_staged(std::span<float> values) {
  while (!values.empty()) {
    const std::span<float> piece = values.first(std::min(values.size(), stage_.size() / sizeof(float)));
    std::memcpy(stage_.data(), piece.data(), piece.size_bytes());
    sum_in_place(memory_.everywhere(stage_), piece.size());
    std::memcpy(piece.data(), stage_.data(), piece.size_bytes());
    values = values.subspan(piece.size());
  }
}

// Says that this rank is so far, and waits until all are.
void Direct::await_all(Signal Signals::*signal, std::size_t barrier, std::size_t barriers) const {
  const TraceSpan span(lane_, "wait for ranks");
  patience_->activity().enter({"barrier", barrier, barriers});
  const int own = memory_.node().rank();
  (signals(own).*signal).raise(sums_);
  for (int rank = 0; rank < memory_.node().size(); ++rank)
    if (rank != own) {
      patience_->activity().await(memory_.node().rank_in_job(rank));
      (signals(rank).*signal).await(sums_, *patience_);
    }
}

}  // namespace annulus
