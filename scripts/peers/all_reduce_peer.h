// Shared by the peers of scripts/bench collectives: a buffer on huge pages, the exactness check, rewriting, the clock
// and the rows, as in src/bench/bench_all_reduce.cpp.
//
//   PROGRAM NAME BYTES,BYTES,... SECONDS [RANKS]
//
// prints a line of JSON after measuring each size. SECONDS is the approximate duration of each row.
// RANKS is for programs that start their ranks themselves.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

namespace peer {

constexpr std::size_t kFewestCalls = 3;
constexpr std::size_t kMostCalls = 2000;
constexpr std::size_t kHugePage = std::size_t{2} << 20;

struct Options {
  std::string name;
  std::vector<std::size_t> sizes;  // bytes
  double seconds;
  int ranks;

  std::size_t largest() const { return *std::max_element(sizes.begin(), sizes.end()); }
};

inline Options parse(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: %s NAME BYTES,BYTES,... SECONDS [RANKS]\n", argv[0]);
    std::exit(2);
  }
  Options options{argv[1], {}, std::atof(argv[3]), argc > 4 ? std::atoi(argv[4]) : 0};
  std::istringstream sizes(argv[2]);
  for (std::string size; std::getline(sizes, size, ',');) options.sizes.push_back(std::stoul(size));
  return options;
}

// One rank's view of a peer.
struct Rank {
  int rank, ranks;
  std::function<void()> barrier;
  std::function<double(double)> maximum;  // over all ranks
  std::function<void(float*, std::size_t)> sum;
  double head_start = 10e-6;  // by then every rank has left `maximum`
};

inline double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Ranks leave a barrier up to a microsecond apart, the time of a small all-reduce. So if each has its own core, they
// agree on a start time on their shared clock.
inline double common_start(const Rank& rank) {
  if (rank.ranks > sysconf(_SC_NPROCESSORS_ONLN)) {
    rank.barrier();
    return now_seconds();
  }
  const double begin = rank.maximum(now_seconds() + rank.head_start);
  while (now_seconds() < begin) {
  }
  return begin;
}

// Allocated for the lifetime of the program.
inline float* huge_buffer(std::size_t bytes) {
  const std::size_t rounded = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  void* memory = std::aligned_alloc(kHugePage, rounded);
  if (memory == nullptr) std::abort();
  madvise(memory, rounded, MADV_HUGEPAGE);
  std::memset(memory, 0, rounded);
  return static_cast<float*>(memory);
}

// Small integers: float32 adds them without rounding in any order.
inline void check_exactness(const Rank& rank, float* values, std::size_t count) {
  constexpr std::size_t period = 1021;
  for (std::size_t i = 0, phase = 0; i < count; ++i, phase = phase + 1 == period ? 0 : phase + 1)
    values[i] = static_cast<float>(phase + rank.rank);
  rank.barrier();
  rank.sum(values, count);
  for (std::size_t i = 0, phase = 0; i < count; ++i, phase = phase + 1 == period ? 0 : phase + 1) {
    const auto expected = static_cast<float>(rank.ranks * phase + rank.ranks * (rank.ranks - 1) / 2);
    if (values[i] == expected) continue;
    std::fprintf(stderr, "wrong: element %zu of %zu is %g instead of %g\n", i, count, values[i], expected);
    std::_Exit(3);
  }
}

// Every rank rewrites its array before each call, untimed, as training does. All ranks have the same times, so all stop
// after the same call.
inline std::vector<double> time_calls(const Rank& rank, float* values, std::size_t count, double seconds) {
  std::vector<double> times;
  for (double spent = 0; times.size() < kMostCalls && (times.size() < kFewestCalls || spent < seconds);
       spent += times.back()) {
    std::fill(values, values + count, 0.0f);
    const double begin = common_start(rank);
    rank.sum(values, count);
    times.push_back(rank.maximum(now_seconds() - begin));
  }
  std::sort(times.begin(), times.end());
  return times;
}

inline void run(const Rank& rank, const Options& options, float* values) {
  for (const std::size_t bytes : options.sizes) {
    const std::size_t count = bytes / sizeof(float);
    check_exactness(rank, values, count);
    const std::vector<double> times = time_calls(rank, values, count, options.seconds);
    if (rank.rank != 0) continue;
    std::printf(
        "{\"algorithm\": \"%s\", \"bytes\": %zu, \"ranks\": %d, \"median_seconds\": %.9g, "
        "\"min_seconds\": %.9g, \"iterations\": %zu}\n",
        options.name.c_str(), bytes, rank.ranks, times[times.size() / 2], times.front(), times.size());
    std::fflush(stdout);
  }
}

}  // namespace peer
