#include "collectives/all_reduce.h"

#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <functional>
#include <numeric>
#include <ostream>
#include <string_view>
#include <thread>

#include "collectives/host/shared_memory_all_reduce.h"
#include "collectives/host/tree_exchange.h"
#include "collectives/shard_tree.h"
#include "kernels/base/error.h"
#include "kernels/base/host_memory.h"
#include "kernels/base/random.h"
#include "kernels/base/split.h"
#include "tests/mpi/shares.h"

using namespace annulus;
using namespace annulus::test;

// One specification for all algorithms. To test a new one, add it to this list.

namespace {

const std::unique_ptr<Device> device = make_device("cpu", 1);

// Some run on simulated nodes with this many ranks each.
struct Case {
  std::string algorithm;
  int ranks_per_node = 0;  // 0: the real nodes
};

std::ostream& operator<<(std::ostream& stream, const Case& c) {
  return stream << c.algorithm << ", " << c.ranks_per_node << " ranks per node";
}

// The cases that this world supports.
std::vector<Case> cases() {
  const World world;
  std::vector<Case> all{{"ring"}, {"message-ring"}, {"mpi"}, {"shm"}, {"doubling"}, {"auto"}, {"auto", 1}, {"auto", 2}};
  for (const int ranks : {2, 3})
    if (world.size() > ranks && world.size() % ranks == 0) all.push_back({"hierarchical", ranks});
  return all;
}

constexpr std::size_t kLarge = (3 << 20) / sizeof(float);

// Sizes at the boundaries where an array is cut, one large array, and fixed random sizes up to 100,000, half of them
// small. The same on every rank.
std::vector<std::size_t> sizes_for(int ranks) {
  const auto n = static_cast<std::size_t>(ranks);
  std::vector<std::size_t> sizes = {0, 1, n - 1, n, n + 1, 16 * n, 997, 65'536, 65'537, kLarge};
  for (const std::size_t bytes : {SharedMemoryAllReduce::kLeastSmallBytes, SharedMemoryAllReduce::kSmallBytes,
                                  SharedMemoryAllReduce::kMostSmallBytes})
    for (const std::size_t size : {bytes / sizeof(float) - 1, bytes / sizeof(float), bytes / sizeof(float) + 1})
      sizes.push_back(size);
  for (std::uint64_t draw = 0; draw < 20; ++draw) sizes.push_back(mix(1, draw) % (draw % 2 == 0 ? 1'000 : 100'001));
  for (std::size_t i = sizes.size(); i > 1; --i) std::swap(sizes[i - 1], sizes[mix(2, i) % i]);
  return sizes;
}

// Arrays of all sizes, one after the other, in the all-reduce's own memory or elsewhere.
class Arrays {
 public:
  Arrays(AllReduce& all_reduce, bool own_memory, const std::vector<std::size_t>& sizes) {
    const std::size_t total = std::accumulate(sizes.begin(), sizes.end(), std::size_t{0});
    std::span<float> left;
    if (own_memory) {
      left = floats(all_reduce.allocate(total * sizeof(float)));
    } else {
      elsewhere_.resize(total);
      left = elsewhere_;
    }
    for (const std::size_t size : sizes) {
      arrays_.push_back(left.first(size));
      left = left.subspan(size);
    }
  }

  std::span<float> operator[](std::size_t number) const { return arrays_[number]; }

 private:
  std::vector<float> elsewhere_;
  std::vector<std::span<float>> arrays_;
};

// The sum of kLarge fractions over the ranks, without rounding.
std::vector<double> exact_fractions(int ranks) {
  std::vector<double> exact(kLarge);
  for (int rank = 0; rank < ranks; ++rank)
    std::ranges::transform(exact, fractions(kLarge, rank), exact.begin(), std::plus<>());
  return exact;
}

// The elements that a rank of the ring sends. In each phase it sends every chunk except the one that it ends up with:
// the chunk to which it adds last, and the chunk that reaches it last.
std::uint64_t ring_values(std::size_t count, int rank, int ranks) {
  const auto n = static_cast<std::size_t>(ranks);
  const auto chunk = [&](std::size_t number) { return split_blocks(count, 16, n, number % n).size(); };
  const auto r = static_cast<std::size_t>(rank);
  return 2 * count - chunk(r + 1) - chunk(r + 2);
}

}  // namespace

TEST_CASE("all-reduces of any size, any number in flight, are exact and bit-identical on all ranks") {
  const Case algorithm = GENERATE(from_range(cases()));
  const World world(algorithm.ranks_per_node);
  const std::size_t together = GENERATE(1, 8);
  const bool own_memory = GENERATE(false, true);
  const std::vector<std::size_t> sizes = sizes_for(world.size());
  const auto all_reduce = make_all_reduce(algorithm.algorithm, world, *device);
  const Arrays arrays(*all_reduce, own_memory, sizes);
  for (const bool exact : {true, false})
    for (std::size_t begin = 0; begin < sizes.size(); begin += together) {
      const std::size_t end = std::min(begin + together, sizes.size());
      std::vector<AllReduce::Ticket> tickets;
      for (std::size_t i = begin; i < end; ++i) {
        std::ranges::copy(exact ? integers(sizes[i], world.rank()) : fractions(sizes[i], world.rank()),
                          arrays[i].begin());
        tickets.push_back(all_reduce->enqueue(view_of(arrays[i])));
      }
      for (std::size_t i = begin; i < end; ++i) {
        CAPTURE(algorithm, together, own_memory, sizes[i]);
        all_reduce->wait(tickets[i - begin]);
        if (exact)
          check_equal(arrays[i], exact_sum(sizes[i], world.size()));
        else
          check_same_on_every_rank(world, arrays[i]);
      }
    }
}

TEST_CASE("repeated all-reduces are bit-identical") {
  const Case algorithm = GENERATE(from_range(cases()));
  const World world(algorithm.ranks_per_node);
  const auto all_reduce = make_all_reduce(algorithm.algorithm, world, *device);
  for (const std::size_t size : {std::size_t{997}, kLarge}) {
    CAPTURE(algorithm, size);
    std::vector<float> first = fractions(size, world.rank());
    std::vector<float> second = first;
    all_reduce->enqueue(view_of(first));
    all_reduce->wait(all_reduce->enqueue(view_of(second)));
    check_equal(second, first);
  }
}

TEST_CASE("on one node, ring and shm are bit-identical") {
  const World world;
  const bool own_memory = GENERATE(false, true);
  const std::vector<std::size_t> sizes = sizes_for(world.size());
  const auto ring = make_all_reduce("message-ring", world, *device);
  const Arrays expected(*ring, own_memory, sizes);
  for (const std::string algorithm : {"ring", "shm", "auto"}) {
    const auto other = make_all_reduce(algorithm, world, *device);
    CHECK(other->info().order == ring->info().order);
    const Arrays arrays(*other, own_memory, sizes);
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      CAPTURE(algorithm, own_memory, sizes[i]);
      for (const auto& values : {expected[i], arrays[i]})
        std::ranges::copy(fractions(sizes[i], world.rank()), values.begin());
      ring->wait(ring->enqueue(view_of(expected[i])));
      other->wait(other->enqueue(view_of(arrays[i])));
      check_equal(arrays[i], {expected[i].begin(), expected[i].end()});
    }
  }
}

TEST_CASE("a reduce-scatter and an all-gather together are an all-reduce, bit for bit") {
  const Case algorithm = GENERATE(Case{"ring"}, Case{"message-ring"}, Case{"shm"}, Case{"auto"}, Case{"auto", 1});
  const WireType wire = GENERATE(WireType::fp32, WireType::bf16, WireType::fp16);
  const World world(algorithm.ranks_per_node);
  const std::vector<std::size_t> sizes = sizes_for(world.size());
  const auto all_reduce = make_all_reduce(algorithm.algorithm, world, *device, wire);
  REQUIRE(all_reduce->info().all_verbs);
  const std::size_t bytes_of_value = all_reduce->info().wire == WireType::fp32 ? 4 : 2;
  const Arrays whole(*all_reduce, true, sizes), two_steps(*all_reduce, true, sizes);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    CAPTURE(algorithm, to_string(wire), sizes[i]);
    for (const auto& values : {whole[i], two_steps[i]})
      std::ranges::copy(fractions(sizes[i], world.rank()), values.begin());
    const std::uint64_t before = all_reduce->progress().snapshot().bytes_sent;
    all_reduce->wait(all_reduce->enqueue(view_of(whole[i])));
    const std::uint64_t sent = all_reduce->progress().snapshot().bytes_sent - before;
    all_reduce->wait(
        all_reduce->enqueue(view_of(two_steps[i]), {.verb = Verb::reduce_scatter, .next = AllReduce::Next::wait}));
    const Range chunk = all_reduce->chunk(sizes[i]);
    const auto sums = whole[i].subspan(chunk.begin, chunk.size());
    check_equal(two_steps[i].subspan(chunk.begin, chunk.size()), {sums.begin(), sums.end()});
    world.barrier();  // other ranks may still read the rest
    // Only the rank's own chunk may come from it.
    for (std::size_t at = 0; at < sizes[i]; ++at)
      if (at < chunk.begin || at >= chunk.end) two_steps[i][at] = -1;
    all_reduce->wait(
        all_reduce->enqueue(view_of(two_steps[i]), {.verb = Verb::all_gather, .next = AllReduce::Next::wait}));
    check_equal(two_steps[i], {whole[i].begin(), whole[i].end()});
    if (algorithm.algorithm.ends_with("ring")) {
      const std::size_t scattered = sizes[i] - chunk.size(), gathered = sent / bytes_of_value - scattered;
      CHECK(all_reduce->progress().snapshot().bytes_sent - before ==
            sent + scattered * bytes_of_value + gathered * sizeof(float));
    }
    const auto chunks = world.gather(std::uint64_t{chunk.size()});
    CHECK(std::accumulate(chunks.begin(), chunks.end(), std::uint64_t{0}) == sizes[i]);
  }
}

TEST_CASE("with 16-bit messages all-gathers and exact all-reduces do not round") {
  const Case algorithm = GENERATE(Case{"message-ring"}, Case{"auto", 1});
  const World world(algorithm.ranks_per_node);
  const auto all_reduce =
      make_all_reduce(algorithm.algorithm, world, *device, GENERATE(WireType::bf16, WireType::fp16));
  const std::vector<std::size_t> sizes{1, 997, kLarge};
  const Arrays arrays(*all_reduce, true, sizes);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    CAPTURE(algorithm, sizes[i]);
    const std::vector<float> expected = fractions(sizes[i], 0);
    const Range chunk = all_reduce->chunk(sizes[i]);
    std::ranges::fill(arrays[i], -1.0f);
    std::copy_n(expected.begin() + static_cast<std::ptrdiff_t>(chunk.begin), chunk.size(),
                arrays[i].subspan(chunk.begin).begin());
    all_reduce->wait(
        all_reduce->enqueue(view_of(arrays[i]), {.verb = Verb::all_gather, .next = AllReduce::Next::wait}));
    check_equal(arrays[i], expected);
    std::ranges::copy(integers(sizes[i], world.rank()), arrays[i].begin());
    all_reduce->wait(all_reduce->enqueue(view_of(arrays[i]), {.exact = true, .next = AllReduce::Next::wait}));
    check_equal(arrays[i], exact_sum(sizes[i], world.size()));
  }
}

TEST_CASE("an all-gather of an array that ranks have in common waits for all ranks") {
  const Case algorithm = GENERATE(Case{"ring"}, Case{"shm"}, Case{"auto"}, Case{"auto", 1});
  const World world(algorithm.ranks_per_node);
  const auto all_reduce = make_all_reduce(algorithm.algorithm, world, *device);
  constexpr std::size_t kCount = 20'001;
  const std::span<float> values = floats(all_reduce->allocate(kCount * sizeof(float), Memory::common));
  CHECK(all_reduce->info().common == all_reduce->info().description.starts_with("shm"));  // auto may choose the ring
  CHECK(std::ranges::count(values, 0.0f) == kCount);
  world.barrier();
  const Range chunk = all_reduce->chunk(kCount);
  for (int step = 1; step <= 5; ++step) {
    std::ranges::fill(values.subspan(chunk.begin, chunk.size()), static_cast<float>(step));
    all_reduce->wait(all_reduce->enqueue(view_of(values), {.verb = Verb::all_gather, .next = AllReduce::Next::wait}));
    CAPTURE(algorithm, step);
    CHECK(std::ranges::count(values, static_cast<float>(step)) == kCount);
    world.barrier();
  }
}

TEST_CASE("all-reduces without reduce-scatter and all-gather refuse them") {
  const World world;
  if (world.size() == 1) return;
  for (const std::string algorithm : {"mpi", "doubling"}) {
    const auto all_reduce = make_all_reduce(algorithm, world, *device);
    CHECK_FALSE(all_reduce->info().all_verbs);
    CHECK_THROWS_AS(all_reduce->chunk(16), Error);
  }
}

TEST_CASE("the measured crossover of shm does not change the result's bits") {
  const World world;
  if (world.size() == 1) return;
  const auto context = std::make_shared<AllReduceContext>(polls_on_this_node(world.local_size()));
  context->backoff.set_urgent(true);
  const bool own_memory = GENERATE(false, true);
  SharedMemoryAllReduce shm(world.node(), nullptr, context);
  const std::size_t measured = shm.measure_small();
  CHECK(std::ranges::count(world.gather(std::uint64_t{measured}), measured) == world.size());
  CHECK((measured == 0 ||
         (measured >= SharedMemoryAllReduce::kLeastSmallBytes && measured <= SharedMemoryAllReduce::kMostSmallBytes)));
  std::vector<float> elsewhere(SharedMemoryAllReduce::kMostSmallBytes / sizeof(float)), expected;
  const auto shared = shm.allocate(SharedMemoryAllReduce::kMostSmallBytes, Memory::own);
  const std::span<float> memory = own_memory ? floats(DeviceView{shared.data(), shared.size()}) : elsewhere;
  for (const std::size_t size : sizes_for(world.size())) {
    if (size > memory.size()) continue;
    const auto values = memory.first(size);
    for (const std::size_t small :
         {std::size_t{0}, SharedMemoryAllReduce::kLeastSmallBytes, measured, SharedMemoryAllReduce::kMostSmallBytes}) {
      CAPTURE(own_memory, size, small);
      shm.set_small_bytes(small);
      std::ranges::copy(fractions(size, world.rank()), values.begin());
      shm.all_reduce(values);
      if (small == 0) expected.assign(values.begin(), values.end());
      check_equal(values, expected);
    }
  }
}

TEST_CASE("a given crossover is used unchanged, and is part of the order's description") {
  const int ranks_per_node = GENERATE(1, 2);
  const World world(ranks_per_node);
  if (world.one_node() || world.smallest_node() != world.largest_node()) return;
  const auto first = make_all_reduce("auto", world, *device);
  REQUIRE(first->info().crossover);
  const std::size_t other = *first->info().crossover == 32'768 ? 4'096 : 32'768;
  const auto second = make_all_reduce("auto", world, *device, WireType::fp32, other);
  CHECK(second->info().crossover == other);
  const std::string node = ranks_per_node == 2 ? "ring of fp32 on each node's 2, between nodes " : "";
  CHECK(second->info().order == fmt::format("{}ring of fp32, up to {} bytes recursive doubling of fp32", node, other));
  CHECK(second->info().order != first->info().order);
  CHECK_FALSE(make_all_reduce("ring", world, *device)->info().crossover);
}

TEST_CASE("waiting for the last array waits for all") {
  const Case algorithm = GENERATE(from_range(cases()));
  const World world(algorithm.ranks_per_node);
  const auto all_reduce = make_all_reduce(algorithm.algorithm, world, *device);
  std::vector<float> large = integers(100'000, world.rank());
  std::vector<float> small = integers(10, world.rank());
  all_reduce->enqueue(view_of(large));
  all_reduce->wait(all_reduce->enqueue(view_of(small)));
  check_equal(large, exact_sum(100'000, world.size()));
  check_equal(small, exact_sum(10, world.size()));
}

TEST_CASE("arrays anywhere in allocate()'s memory are all-reduced exactly") {
  const Case algorithm = GENERATE(from_range(cases()));
  const World world(algorithm.ranks_per_node);
  const auto all_reduce = make_all_reduce(algorithm.algorithm, world, *device);
  const std::span memory = floats(all_reduce->allocate(kLarge * sizeof(float)));
  std::size_t begin = 0;
  for (const std::size_t size : {0, 1, 16, 997, 8'192, 8'193, 100'000, 300'001}) {
    CAPTURE(algorithm, size, begin);
    const auto values = memory.subspan(begin, size);
    std::ranges::copy(integers(size, world.rank()), values.begin());
    all_reduce->wait(all_reduce->enqueue(view_of(values)));
    check_equal({values.begin(), values.end()}, exact_sum(size, world.size()));
    begin += size;
  }
  CHECK(std::ranges::all_of(memory.subspan(begin), [](float value) { return value == 0; }));
}

TEST_CASE("with 16-bit messages the result is bit-identical on all ranks and close to the exact sum") {
  const World world;
  const WireType wire = GENERATE(WireType::bf16, WireType::fp16);
  const std::string algorithm = GENERATE("message-ring", "doubling", "auto");
  const auto all_reduce = make_all_reduce(algorithm, world, *device, wire);
  std::vector<float> values = fractions(kLarge, world.rank());
  const std::vector<double> exact = exact_fractions(world.size());
  all_reduce->wait(all_reduce->enqueue(view_of(values)));
  check_same_on_every_rank(world, values);
  // Each is at most a third; every hop rounds a part of the sum once.
  const double allowed = (wire == WireType::bf16 ? 0x1p-9 : 0x1p-12) * world.size() * world.size();
  double worst = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) worst = std::max(worst, std::abs(values[i] - exact[i]));
  CHECK(worst <= allowed);
}

TEST_CASE("a wire format without effect is reported, also in a world of one") {
  const World world;
  for (const std::string algorithm : {"auto", "ring", "shm", "mpi", "none"}) {
    const auto all_reduce = make_all_reduce(algorithm, world, *device, WireType::bf16);
    CAPTURE(algorithm);
    CHECK_THAT(unused_wire(*all_reduce, WireType::bf16), Catch::StartsWith("--wire bf16 has no effect"));
    CHECK(unused_wire(*all_reduce, WireType::fp32).empty());
  }
  if (world.size() == 1) return;
  const World apart(1);  // one node per rank
  for (const std::string algorithm : {"auto", "message-ring", "doubling"})
    CHECK(unused_wire(*make_all_reduce(algorithm, apart, *device, WireType::bf16), WireType::bf16).empty());
  if (world.size() != 4) return;
  const World pairs(2);  // two ranks on each node
  for (const std::string algorithm : {"auto", "hierarchical"})
    CHECK(unused_wire(*make_all_reduce(algorithm, pairs, *device, WireType::bf16), WireType::bf16).empty());
}

TEST_CASE("two concurrent all-reduces do not mix up their messages") {
  const World world;
  const auto one = make_all_reduce("ring", world, *device);
  const auto other = make_all_reduce("mpi", world, *device);
  std::vector<float> first = integers(50'000, world.rank());
  std::vector<float> second = integers(40'000, world.rank());
  const AllReduce::Ticket first_ticket = one->enqueue(view_of(first));
  const AllReduce::Ticket second_ticket = other->enqueue(view_of(second));
  world.barrier();  // the main thread's messages are separate too
  other->wait(second_ticket);
  one->wait(first_ticket);
  check_equal(first, exact_sum(50'000, world.size()));
  check_equal(second, exact_sum(40'000, world.size()));
}

TEST_CASE("the ring sends 2(N-1)/N of an array that N divides in cache lines, else what the partition gives") {
  const World world;
  const auto n = static_cast<std::size_t>(world.size());
  std::vector<std::size_t> sizes = sizes_for(world.size());
  for (const std::size_t size : sizes_for(world.size())) sizes.push_back(size / (16 * n) * (16 * n));
  const WireType wire = GENERATE(WireType::fp32, WireType::bf16);
  const std::size_t bytes_of_value = wire == WireType::fp32 ? 4 : 2;
  const auto all_reduce = make_all_reduce("message-ring", world, *device, wire);
  for (const std::size_t size : sizes) {
    CAPTURE(size);
    std::vector<float> values(size);
    const std::uint64_t before = all_reduce->progress().snapshot().bytes_sent;
    all_reduce->wait(all_reduce->enqueue(view_of(values)));
    const std::uint64_t sent = all_reduce->progress().snapshot().bytes_sent - before;
    CHECK(sent == ring_values(size, world.rank(), world.size()) * bytes_of_value);
    if (size % (16 * n) == 0) CHECK(sent == 2 * (n - 1) * (size / n) * bytes_of_value);
  }
}

TEST_CASE("none leaves every array unchanged, and reports it") {
  const World world;
  const auto none = make_all_reduce("none", world, *device);
  std::vector<float> values = integers(997, world.rank());
  none->wait(none->enqueue(view_of(values)));
  CHECK(values == integers(997, world.rank()));
  CHECK(none->info().reduces == (world.size() == 1));
  CHECK(make_all_reduce("ring", world, *device)->info().reduces);
}

TEST_CASE("an unknown algorithm is refused with the list of known ones") {
  const World world;
  CHECK_THROWS_WITH(make_all_reduce("tree", world, *device),
                    Catch::Contains("'tree'") && Catch::Contains("ring") && Catch::Contains("mpi"));
}

TEST_CASE("all-reduces that nobody waits for do not keep a rank from leaving") {
  const World world;
  std::vector<float> values(1'000'000);
  const auto all_reduce = make_all_reduce("ring", world, *device);
  if (world.root()) all_reduce->enqueue(view_of(values));
}

namespace {

// The sum of shards [begin, end) of `part`(shard), in the order of the tree.
template <class Part>
std::vector<float> tree_sum(std::size_t begin, std::size_t end, const Part& part) {
  if (begin + 1 == end) return part(begin);
  const std::size_t middle = begin + std::bit_ceil(end - begin) / 2;
  std::vector<float> sum = tree_sum(begin, middle, part);
  std::ranges::transform(sum, tree_sum(middle, end, part), sum.begin(), std::plus<>());
  return sum;
}

// All-reduces `part`(shard) of all shards, of which this rank has the subtrees `own`.
template <class Part>
void check_sum_of_shards(AllReduce& all_reduce, std::span<float> array, const std::vector<Range>& own,
                         std::size_t shards, const Part& part) {
  for (std::size_t number = 0; number < own.size(); ++number)
    std::ranges::copy(tree_sum(own[number].begin, own[number].end, part),
                      floats(all_reduce.addend(view_of(array), number)).begin());
  all_reduce.wait(all_reduce.enqueue(view_of(array)));
  check_equal(array, tree_sum(0, shards, part));
}

}  // namespace

TEST_CASE("shards are summed in the order of their tree, on any number of ranks and nodes") {
  const int ranks_per_node = GENERATE(0, 1, 2, 3);
  const World world(ranks_per_node);
  const auto ranks = static_cast<std::size_t>(world.size()), rank = static_cast<std::size_t>(world.rank());
  for (const std::size_t shards : {ranks, ranks + 1, std::size_t{7}, std::size_t{8}, 2 * ranks, std::size_t{21}}) {
    if (shards < ranks) continue;
    const auto all_reduce = make_shard_all_reduce(world, *device, shards);
    CHECK(all_reduce->info().order == (ranks == 1 ? "none" : fmt::format("tree of {} shards", shards)));
    const std::vector<Range> own = tree_order(rank, ranks, shards).sums;
    const std::vector<std::size_t> sizes{0, 1, ranks - 1, ranks, ranks + 1, 997, 16 * ranks, 40'001};
    const Arrays arrays(*all_reduce, true, sizes);
    for (const int round : {0, 1})
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        CAPTURE(ranks_per_node, shards, sizes[i], round);
        const auto part = [&](std::size_t shard) { return fractions(sizes[i], static_cast<int>(shard) + 100 * round); };
        check_sum_of_shards(*all_reduce, arrays[i], own, shards, part);
      }
  }
}

TEST_CASE("shards have the same sum when ranks are lost one by one, in the middle of an all-reduce") {
  const int ranks_per_node = GENERATE(0, 1, 2);
  const bool one_each = GENERATE(false, true);  // a shard for each rank that is left
  const World everyone(ranks_per_node);
  if (everyone.size() == 1) return;
  World world = everyone;
  const auto all_reduce = make_shard_all_reduce(world, *device, one_each ? 0 : 11);
  const std::vector<std::size_t> sizes{1, 997, 40'001};
  const Arrays arrays(*all_reduce, true, sizes);
  for (int losses = 0;; ++losses) {
    const auto ranks = static_cast<std::size_t>(world.size()), rank = static_cast<std::size_t>(world.rank());
    const std::size_t shards = one_each ? ranks : 11;
    const std::vector<Range> own = tree_order(rank, ranks, shards).sums;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      CAPTURE(ranks_per_node, losses, shards, sizes[i]);
      const auto part = [&](std::size_t shard) { return fractions(sizes[i], static_cast<int>(shard) + 100 * losses); };
      check_sum_of_shards(*all_reduce, arrays[i], own, shards, part);
    }
    world.barrier();
    if (world.size() == 1) break;
    const int lost = world.rank_in_job(losses % 2 == 0 ? 0 : world.size() - 1);
    std::vector<int> left;
    for (int member = 0; member < world.size(); ++member)
      if (world.rank_in_job(member) != lost) left.push_back(world.rank_in_job(member));
    if (everyone.rank() == lost) break;
    const AllReduce::Ticket never_complete = all_reduce->enqueue(view_of(arrays[2]));
    world.interrupt(true);
    CHECK_THROWS_AS(all_reduce->wait(never_complete), Error);
    world.continue_with(left, losses + 1);
    world.interrupt(false);
    all_reduce->continue_in(world);
  }
  everyone.barrier();
}

// Until the last loss the nodes have different numbers of ranks, and ranks more subtrees.
TEST_CASE("shards have the same sum if only some ranks began to continue before another was lost") {
  const int ranks_per_node = GENERATE(0, 2);
  const World everyone(ranks_per_node);
  if (everyone.size() < 3) return;
  World world = everyone;
  constexpr std::size_t shards = 8;
  const auto all_reduce = make_shard_all_reduce(world, *device, shards);
  const std::vector<std::size_t> sizes{1, 40'001};
  const Arrays arrays(*all_reduce, true, sizes);
  std::vector<int> left(static_cast<std::size_t>(world.size()));
  std::iota(left.begin(), left.end(), 0);
  for (const int losses : {1, 2}) {
    left.pop_back();
    if (everyone.rank() > left.back()) break;
    if (losses == 1 && everyone.rank() % 2 == 1) continue;
    world.continue_with(left, losses);
    if (losses == 2) {
      all_reduce->continue_in(world);
      break;
    }
    world.interrupt(true);
    CHECK_THROWS_AS(all_reduce->continue_in(world), Error);
    world.interrupt(false);
  }
  if (everyone.rank() <= left.back()) {
    const std::vector<Range> own =
        tree_order(static_cast<std::size_t>(world.rank()), static_cast<std::size_t>(world.size()), shards).sums;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      CAPTURE(ranks_per_node, sizes[i]);
      const auto part = [&](std::size_t shard) { return fractions(sizes[i], static_cast<int>(shard)); };
      check_sum_of_shards(*all_reduce, arrays[i], own, shards, part);
    }
  }
  everyone.barrier();
}

namespace {

// All ways to divide `blocks` blocks of `distance` ranks into rounds.
std::vector<std::vector<ExchangeRound>> all_schedules(std::size_t blocks, std::size_t distance = 1) {
  if (blocks == 1) return {{}};
  std::vector<std::vector<ExchangeRound>> all;
  for (std::size_t members = 2; members <= blocks; ++members) {
    if (blocks % members != 0) continue;
    for (std::vector<ExchangeRound>& rest : all_schedules(blocks / members, distance * members)) {
      rest.insert(rest.begin(), {members, distance});
      all.push_back(std::move(rest));
    }
  }
  return all;
}

struct Exchange {
  Exchange(const World& world, std::size_t of_shards, const std::vector<ExchangeRound>& schedule) : shards(of_shards) {
    const auto ranks = static_cast<std::size_t>(world.size());
    std::vector<std::vector<Range>> subtrees;
    for (std::size_t rank = 0; rank < ranks; ++rank) subtrees.push_back(tree_order(rank, ranks, shards).sums);
    own = subtrees[static_cast<std::size_t>(world.rank())];
    context = std::make_shared<AllReduceContext>(polls_on_this_node(world.size()), world.interruption());
    context->backoff.set_urgent(true);
    exchange.emplace(world, subtrees, shards, context, schedule);
  }

  void check(std::size_t size, bool in_place) {
    CAPTURE(shards, size, in_place);
    const auto part = [&](std::size_t shard) { return fractions(size, static_cast<int>(shard)); };
    std::vector<std::vector<float>> arrays;
    std::vector<const float*> addresses;
    for (const Range& subtree : own)
      addresses.push_back(arrays.emplace_back(tree_sum(subtree.begin, subtree.end, part)).data());
    if (!in_place) arrays.emplace_back(size);
    exchange->run(addresses, arrays.back());
    check_equal(arrays.back(), tree_sum(0, shards, part));
  }

  std::size_t shards;
  std::vector<Range> own;
  std::shared_ptr<AllReduceContext> context;
  std::optional<TreeExchange> exchange;
};

}  // namespace

TEST_CASE("shards have the same sum in any rounds of an exchange") {
  const World world = World().apart();
  if (world.size() == 1) return;
  const auto ranks = static_cast<std::size_t>(world.size());
  for (const std::size_t shards : {ranks, ranks + 1, std::size_t{21}})
    for (const auto& schedule : all_schedules(ranks)) {
      CAPTURE(schedule.size());
      Exchange exchange(world, shards, schedule);
      for (const std::size_t size :
           {std::size_t{0}, std::size_t{1}, ranks - 1, ranks + 1, std::size_t{997}, std::size_t{40'001}})
        for (const bool in_place : {false, true}) exchange.check(size, in_place);
    }
}

TEST_CASE("an exchange in any rounds can be interrupted, and repeated by a new one") {
  World world = World().apart();
  if (world.size() == 1) return;
  std::vector<int> everyone(static_cast<std::size_t>(world.size()));
  std::iota(everyone.begin(), everyone.end(), 0);
  const std::size_t shards = everyone.size() + 1;
  int interruptions = 0;
  for (const auto& schedule : all_schedules(everyone.size())) {
    CAPTURE(schedule.size());
    Exchange interrupted(world, shards, schedule);
    world.barrier();
    if (!world.root()) {  // which does not take part: so sooner or later, the others wait for it
      const std::jthread interrupter([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        world.interrupt(true);
      });
      CHECK_THROWS_AS(interrupted.check(40'001, false), Error);
      const auto step = interrupted.context->progress.snapshot().step;
      CHECK(step.of == 2 * schedule.size());
      if (world.rank() == 1) CHECK(step.number == 1);  // the first round needs rank 0
    }
    world.continue_with(everyone, ++interruptions);
    world.interrupt(false);
    Exchange(world, shards, schedule).check(40'001, false);
  }
}

TEST_CASE("fewer shards than ranks are refused by every rank") {
  const World world;
  if (world.size() == 1) return;
  const auto shards = static_cast<std::size_t>(world.size()) - 1;
  CHECK_THROWS_WITH(make_shard_all_reduce(world, *device, shards), Catch::Contains("shards are too few for"));
}
