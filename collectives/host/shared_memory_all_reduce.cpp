#include "collectives/host/shared_memory_all_reduce.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "collectives/host/call_note.h"
#include "collectives/host/measure.h"
#include "collectives/ring/ring_partition.h"

namespace annulus {
namespace {

constexpr std::size_t kStageBytes = 1024 * 1024;  // pieces, for arrays in other memory
constexpr std::size_t kBlock = 2048;              // elements at a time: they and their sum fit the L1 cache

float* floats(std::byte* bytes, std::size_t offset = 0) {
  return reinterpret_cast<float*>(bytes) + offset;
}

Call sum_of(std::span<float> values, Call::Kind kind = Call::Kind::all_reduce) {
  auto* const bytes = reinterpret_cast<std::byte*>(values.data());
  return {.kind = kind, .count = values.size(), .send = bytes, .receive = bytes};
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

void SharedMemoryAllReduce::Piece::reduce(const Range& part, std::byte* to) const {
  for (std::size_t rank = 0; rank < everywhere.size(); ++rank) {
    const Range chunk = RingPartition::chunk_of(whole, everywhere.size(), rank);
    const Range common{std::max(chunk.begin, begin + part.begin), std::min(chunk.end, begin + part.end)};
    if (common.begin >= common.end) continue;
    const Range here{common.begin - begin, common.end - begin};
    annulus::reduce(loops, everywhere, rank, here, to + (here.begin - part.begin) * loops.element_bytes);
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
      return reduce(sum_of(values));
    case Verb::reduce_scatter:
      return reduce_scatter(values);
    case Verb::all_gather:
      return all_gather(values);
  }
}

// The first barrier. Every rank compares all calls with the first rank's, so all ranks find the same difference.
// Returns whether all arrays are in shared memory.
bool SharedMemoryAllReduce::meet(const Call& call, std::optional<SharedMemory::Place> place, std::size_t barriers) {
  const World& node = memory_.node();
  barrier_.wait(1, barriers, lane(), CallNote(call, place).note());
  const CallNote first(barrier_.note(0));
  arrays_.clear();
  bool all = true;
  for (std::size_t rank = 0; rank < ranks(); ++rank) {
    const CallNote other(barrier_.note(rank));
    if (!other.same_call(first))
      throw CallMismatch(fmt::format("rank {} called {}, but rank {} {}", node.rank_in_job(0), to_string(first.call()),
                                     node.rank_in_job(static_cast<int>(rank)), to_string(other.call())));
    const auto found = other.place();
    arrays_.push_back(found ? memory_.at(static_cast<int>(rank), *found) : nullptr);
    all &= found.has_value();
  }
  return all;
}

Range SharedMemoryAllReduce::chunk(std::size_t count) const {
  return RingPartition::chunk_of(count, ranks(), own());
}

// An array elsewhere goes through the stage. `run` follows a barrier that all ranks' pieces are ready after.
void SharedMemoryAllReduce::in_pieces(const Call& call, std::size_t barriers,
                                      const std::function<void(const Piece& piece, bool staged)>& run) {
  const ReductionLoops& loops = loops_of(call.reduction);
  const std::size_t fit = stage_.size() / loops.element_bytes;
  const auto bytes = [&](std::size_t begin) { return std::min(fit, call.count - begin) * loops.element_bytes; };
  const auto place = memory_.find({call.receive, call.count * loops.element_bytes});
  if (call.count > 0 && !place) std::memcpy(stage_.data(), call.send, bytes(0));
  if (call.count > 0 && place && call.send != call.receive)
    std::memcpy(call.receive, call.send, call.count * loops.element_bytes);
  if (meet(call, place, barriers)) return run({arrays_, loops, call.count, 0, call.count}, false);
  const bool none_ready = std::ranges::all_of(arrays_, [](const std::byte* array) { return array == nullptr; });
  for (std::size_t begin = 0; begin < call.count; begin += fit) {
    if (begin > 0 || !none_ready) {
      std::memcpy(stage_.data(), call.send + begin * loops.element_bytes, bytes(begin));
      barrier_.wait(1, barriers, lane());
    }
    run({memory_.everywhere(stage_), loops, bytes(begin) / loops.element_bytes, begin, call.count}, true);
    std::memcpy(call.receive + begin * loops.element_bytes, stage_.data(), bytes(begin));
  }
}

void SharedMemoryAllReduce::reduce(const Call& call) {
  if (call.count * call.element_bytes() <= small_bytes_) return reduce_copies(call);
  in_pieces(call, 2, [this](const Piece& piece, bool) {
    if (across_nodes_)
      sum_chunk_across_nodes(piece, chunk(piece.count));
    else
      reduce_chunk(piece, chunk(piece.count));
    barrier_.wait(2, 2, lane());  // every rank's chunk is complete
  });
}

void SharedMemoryAllReduce::reduce_scatter(std::span<float> values) {
  const TraceSpan span(lane(), "reduce-scatter");
  in_pieces(sum_of(values, Call::Kind::reduce_scatter), 1, [&](const Piece& piece, bool staged) {
    reduce_own_chunk(piece, piece.part_of(chunk(values.size())));
    if (staged) barrier_.wait(2, 2, lane());  // no rank reads the stage any longer
  });
}

void SharedMemoryAllReduce::all_gather(std::span<float> values) {
  const TraceSpan span(lane(), "all-gather");
  if (memory_.in_common(values.data())) return barrier_.wait(1, 1, lane());
  in_pieces(sum_of(values, Call::Kind::all_gather), 2, [&](const Piece& piece, bool) {
    for (std::size_t turn = 1; turn < ranks(); ++turn) {  // not all from the same rank at a time
      const std::size_t rank = (own() + turn) % ranks();
      const Range part = piece.part_of(RingPartition::chunk_of(values.size(), ranks(), rank));
      std::memcpy(piece.at(own(), part.begin), piece.at(rank, part.begin), part.size() * sizeof(float));
    }
    barrier_.wait(2, 2, lane());  // and no rank reads it any longer
  });
}

// The two copies are used alternately, so a single barrier is enough: a rank writes its copy for all-reduce s + 2 after
// all ranks arrived at s + 1, thus after they read its copy for s.
void SharedMemoryAllReduce::reduce_copies(const Call& call) {
  const auto copy = copies_[++small_ones_ % 2];
  if (call.count > 0) std::memcpy(copy.data(), call.send, call.count * call.element_bytes());
  meet(call, std::nullopt, 1);
  const Piece copies{memory_.everywhere(copy), loops_of(call.reduction), call.count, 0, call.count};
  copies.reduce({0, call.count}, call.receive);
  if (across_nodes_) across_nodes_->all_reduce({reinterpret_cast<float*>(call.receive), call.count});
}

// Each array is read once and written once: two arrays while their sum is in a register; more arrays block by block
// through the L1 cache.
void SharedMemoryAllReduce::reduce_chunk(const Piece& piece, const Range& chunk) {
  if (ranks() == 2)
    return piece.loops.combine_into_both(piece.at(0, chunk.begin), piece.at(1, chunk.begin), chunk.size(), 2);
  alignas(64) std::byte block[kBlock * sizeof(double)];
  for (std::size_t begin = chunk.begin; begin < chunk.end; begin += kBlock) {
    const std::size_t size = std::min(kBlock, chunk.end - begin);
    piece.reduce({begin, begin + size}, block);
    for (std::size_t rank = 0; rank < ranks(); ++rank)
      std::memcpy(piece.at(rank, begin), block, size * piece.loops.element_bytes);
  }
}

// Writes the sum to this rank's array only.
void SharedMemoryAllReduce::reduce_own_chunk(const Piece& piece, const Range& chunk) {
  alignas(64) std::byte block[kBlock * sizeof(double)];
  for (std::size_t begin = chunk.begin; begin < chunk.end; begin += kBlock) {
    const std::size_t size = std::min(kBlock, chunk.end - begin);
    piece.reduce({begin, begin + size}, block);
    std::memcpy(piece.at(own(), begin), block, size * piece.loops.element_bytes);
  }
}

void SharedMemoryAllReduce::sum_chunk_across_nodes(const Piece& piece, const Range& chunk) {
  std::byte* const sum = piece.at(own(), chunk.begin);
  reduce_own_chunk(piece, chunk);
  across_nodes_->all_reduce({reinterpret_cast<float*>(sum), chunk.size()});
  for (std::size_t rank = 0; rank < ranks(); ++rank)
    if (rank != own()) std::memcpy(piece.at(rank, chunk.begin), sum, chunk.size() * sizeof(float));
}

}  // namespace annulus
