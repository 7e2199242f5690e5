#include "collectives/host/shared_memory_all_reduce.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "collectives/host/measure.h"
#include "collectives/ring/ring_partition.h"

namespace annulus {
namespace {

constexpr std::size_t kStageBytes = 1024 * 1024;  // pieces, for arrays in other memory
constexpr std::size_t kBlock = 2048;  // floats that are summed at a time: they and their sum fit the L1 cache

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

// Sums `part` over every array into `to`, starting with array `first` and wrapping around after the last.
void sum_of_all(std::span<std::byte* const> arrays, std::size_t first, const Range& part, float* to) {
  const auto at = [&](std::size_t number) { return floats(arrays[(first + number) % arrays.size()], part.begin); };
  sum_of_two(at(0), at(1), to, part.size());
  for (std::size_t number = 2; number < arrays.size(); ++number) sum_of_two(to, at(number), to, part.size());
}

// Returns the Info for all nodes together.
AllReduceAlgorithm::Info info_of(const World& node, const AllReduceAlgorithm* across_nodes) {
  if (across_nodes == nullptr) return {.order = "ring of fp32", .all_verbs = true};
  const AllReduceAlgorithm::Info& across = across_nodes->info();
  return {fmt::format("ring of fp32 on each node's {}, between nodes {}", node.size(), across.order), across.crossover,
          across.wire};
}

}  // namespace

Range SharedMemoryAllReduce::Piece::part_of(const Range& chunk) const {
  const Range common{std::max(chunk.begin, begin), std::min(chunk.end, begin + count)};
  return common.begin < common.end ? Range{common.begin - begin, common.end - begin} : Range{0, 0};
}

void SharedMemoryAllReduce::Piece::sum(const Range& part, float* to) const {
  for (std::size_t rank = 0; rank < everywhere.size(); ++rank) {
    const Range chunk = RingPartition::chunk_of(whole, everywhere.size(), rank);
    const Range common{std::max(chunk.begin, begin + part.begin), std::min(chunk.end, begin + part.end)};
    if (common.begin >= common.end) continue;
    const Range here{common.begin - begin, common.end - begin};
    sum_of_all(everywhere, rank, here, to + (here.begin - part.begin));
  }
}

SharedMemoryAllReduce::SharedMemoryAllReduce(World node, std::unique_ptr<AllReduceAlgorithm> across_nodes,
                                             std::shared_ptr<AllReduceContext> context)
    : AllReduceAlgorithm(info_of(node, across_nodes.get()), context),
      memory_(std::move(node)),
      across_nodes_(std::move(across_nodes)),
      barrier_(memory_, std::move(context)) {
  for (auto& copy : copies_) copy = memory_.allocate(kMostSmallBytes);
  stage_ = memory_.allocate(kStageBytes);
}

// On several nodes other nodes would not know of it.
std::span<std::byte> SharedMemoryAllReduce::allocate(std::size_t bytes, Memory memory) {
  const bool in_common = memory == Memory::common && common();
  try {
    return in_common ? memory_.allocate_common(bytes) : memory_.allocate(bytes);
  } catch (const NoSharedMemory&) {
    if (across_nodes_) throw;
  }
  elsewhere_ = true;
  common_elsewhere_ |= in_common;
  return AllReduceAlgorithm::allocate(bytes, memory);
}

std::string SharedMemoryAllReduce::way() const {
  return elsewhere_ ? "piece by piece, because /dev/shm has too little space" : "";
}

// The stage is an array in shared memory like any other.
std::size_t SharedMemoryAllReduce::measure_small() {
  const auto seconds_with = [&](std::size_t small_bytes) {
    return [&, small_bytes](std::size_t bytes) {
      set_small_bytes(small_bytes);
      return all_reduce_seconds(memory_.node(), *this, {floats(stage_.data()), bytes / sizeof(float)});
    };
  };
  set_small_bytes(find_crossover(seconds_with(kMostSmallBytes), seconds_with(0), kLeastSmallBytes, kMostSmallBytes));
  return small_bytes_;
}

void SharedMemoryAllReduce::run(std::span<float> values, const Collective& collective) {
  switch (collective.verb) {
    case Verb::all_reduce:
      return sum(values);
    case Verb::reduce_scatter:
      return reduce_scatter(values);
    case Verb::all_gather:
      return all_gather(values);
  }
}

void SharedMemoryAllReduce::sum(std::span<float> values) {
  if (values.size_bytes() <= small_bytes_) return sum_copies(values);
  in_pieces(values, [this](const Piece& piece) { sum_in_place(piece); });
}

Range SharedMemoryAllReduce::chunk(std::size_t count) const {
  const World& node = memory_.node();
  return RingPartition::chunk_of(count, static_cast<std::size_t>(node.size()), static_cast<std::size_t>(node.rank()));
}

// An array elsewhere goes through the stage.
void SharedMemoryAllReduce::in_pieces(std::span<float> values, const std::function<void(const Piece& piece)>& run) {
  const auto arrays = memory_.everywhere(std::as_bytes(values));
  if (!arrays.empty()) return run({arrays, values.size(), 0, values.size()});
  const std::size_t fit = stage_.size() / sizeof(float);
  for (std::size_t begin = 0; begin < values.size(); begin += fit) {
    const std::span<float> part = values.subspan(begin, std::min(fit, values.size() - begin));
    std::memcpy(stage_.data(), part.data(), part.size_bytes());
    run({memory_.everywhere(stage_), part.size(), begin, values.size()});
    std::memcpy(part.data(), stage_.data(), part.size_bytes());
  }
}

void SharedMemoryAllReduce::reduce_scatter(std::span<float> values) {
  const TraceSpan span(lane(), "reduce-scatter");
  in_pieces(values, [&](const Piece& piece) {
    const bool staged = piece.everywhere[static_cast<std::size_t>(memory_.node().rank())] == stage_.data();
    barrier_.wait(1, staged ? 2 : 1, lane());  // every rank's array is ready
    sum_own_chunk(piece, piece.part_of(chunk(values.size())));
    if (staged) barrier_.wait(2, 2, lane());  // no rank reads the stage any longer
  });
}

void SharedMemoryAllReduce::all_gather(std::span<float> values) {
  const TraceSpan span(lane(), "all-gather");
  if (memory_.in_common(values.data())) return barrier_.wait(1, 1, lane());
  in_pieces(values, [&](const Piece& piece) {
    barrier_.wait(1, 2, lane());  // every rank's chunk is ready
    const std::size_t ranks = piece.everywhere.size(), own = static_cast<std::size_t>(memory_.node().rank());
    for (std::size_t turn = 1; turn < ranks; ++turn) {  // not all from the same rank at a time
      const std::size_t rank = (own + turn) % ranks;
      const Range part = piece.part_of(RingPartition::chunk_of(values.size(), ranks, rank));
      std::memcpy(floats(piece.everywhere[own], part.begin), floats(piece.everywhere[rank], part.begin),
                  part.size() * sizeof(float));
    }
    barrier_.wait(2, 2, lane());  // and no rank reads it any longer
  });
}

// The two copies are used alternately, so a single barrier is enough: a rank writes its copy for all-reduce s + 2 after
// all ranks arrived at s + 1, thus after they read its copy for s.
void SharedMemoryAllReduce::sum_copies(std::span<float> values) {
  const auto own = copies_[++small_ones_ % 2];
  std::memcpy(own.data(), values.data(), values.size_bytes());
  barrier_.wait(1, 1, lane());
  const Piece copies{memory_.everywhere(own), values.size(), 0, values.size()};
  copies.sum({0, values.size()}, values.data());
  if (across_nodes_) across_nodes_->all_reduce(values);
}

void SharedMemoryAllReduce::sum_in_place(const Piece& piece) {
  barrier_.wait(1, 2, lane());  // every rank's array is ready
  if (across_nodes_)
    sum_chunk_across_nodes(piece, chunk(piece.count));
  else
    sum_chunk(piece, chunk(piece.count));
  barrier_.wait(2, 2, lane());  // every rank's chunk is complete
}

// Each array is read once and written once: two arrays while their sum is in a register; more arrays block by block
// through the L1 cache.
void SharedMemoryAllReduce::sum_chunk(const Piece& piece, const Range& chunk) {
  const auto arrays = piece.everywhere;
  if (arrays.size() == 2)
    return sum_into_both(floats(arrays[0], chunk.begin), floats(arrays[1], chunk.begin), chunk.size());
  alignas(64) float block[kBlock];
  for (std::size_t begin = chunk.begin; begin < chunk.end; begin += kBlock) {
    const std::size_t size = std::min(kBlock, chunk.end - begin);
    piece.sum({begin, begin + size}, block);
    for (std::byte* array : arrays) std::memcpy(floats(array, begin), block, size * sizeof(float));
  }
}

// Writes the sum to this rank's array only.
void SharedMemoryAllReduce::sum_own_chunk(const Piece& piece, const Range& chunk) {
  std::byte* const array = piece.everywhere[static_cast<std::size_t>(memory_.node().rank())];
  alignas(64) float block[kBlock];
  for (std::size_t begin = chunk.begin; begin < chunk.end; begin += kBlock) {
    const std::size_t size = std::min(kBlock, chunk.end - begin);
    piece.sum({begin, begin + size}, block);
    std::memcpy(floats(array, begin), block, size * sizeof(float));
  }
}

void SharedMemoryAllReduce::sum_chunk_across_nodes(const Piece& piece, const Range& chunk) {
  const auto arrays = piece.everywhere;
  const auto own = static_cast<std::size_t>(memory_.node().rank());
  float* const sum = floats(arrays[own], chunk.begin);
  sum_own_chunk(piece, chunk);
  across_nodes_->all_reduce({sum, chunk.size()});
  for (std::size_t rank = 0; rank < arrays.size(); ++rank)
    if (rank != own) std::memcpy(floats(arrays[rank], chunk.begin), sum, chunk.size() * sizeof(float));
}

}  // namespace annulus
