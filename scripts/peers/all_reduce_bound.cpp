// An upper bound for processes of one machine, without any messages: all arrays are in one shared mapping, and every
// rank sums its part of all arrays and writes the result to all of them, between two barriers.
#include "forked_ranks.h"

namespace {

// The arrays' distance is not a power of two, because addresses equal modulo a large one evict each other from the
// cache.
constexpr std::size_t kSkew = 37 * 4096 + 320;

template <int kRanks>
void add_part(float* first, std::size_t stride, std::size_t begin, std::size_t end) {
#pragma GCC ivdep
  for (std::size_t i = begin; i < end; ++i) {
    float sum = first[i];
    for (int rank = 1; rank < kRanks; ++rank) sum += first[rank * stride + i];
    for (int rank = 0; rank < kRanks; ++rank) first[rank * stride + i] = sum;
  }
}

auto* add_part_of(int ranks) {
  switch (ranks) {
    case 2:
      return add_part<2>;
    case 3:
      return add_part<3>;
    case 4:
      return add_part<4>;
    case 6:
      return add_part<6>;
    case 8:
      return add_part<8>;
    default:
      std::fprintf(stderr, "built for 2, 3, 4, 6 or 8 ranks, not for %d\n", ranks);
      std::exit(2);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const peer::Options options = peer::parse(argc, argv);
  auto* const add = add_part_of(options.ranks);
  const std::size_t stride = (options.largest() + kSkew) / 64 * 64 / sizeof(float);
  const std::size_t bytes = options.ranks * stride * sizeof(float) + peer::kHugePage;
  void* const memory = peer::shared_memory(bytes);
  madvise(memory, bytes, MADV_HUGEPAGE);  // granted if /sys/kernel/mm/transparent_hugepage/shmem_enabled allows it
  auto* const first = static_cast<float*>(memory);
  auto* const entry = new (peer::shared_memory(sizeof(peer::Barrier))) peer::Barrier;
  const bool own_core = options.ranks <= peer::cores();
  return peer::run_forked(options.ranks, own_core, [&](peer::Rank& rank) {
    rank.sum = [&](float*, std::size_t count) {
      constexpr std::size_t line = 64 / sizeof(float);
      const std::size_t part = (count / rank.ranks + line - 1) / line * line;
      const std::size_t begin = std::min(count, part * rank.rank);
      const std::size_t end = rank.rank + 1 == rank.ranks ? count : std::min(count, begin + part);
      entry->wait(rank.rank, rank.ranks, own_core);
      add(first, stride, begin, end);
      entry->wait(rank.rank, rank.ranks, own_core);
    };
    peer::run(rank, options, first + rank.rank * stride);
  });
}
