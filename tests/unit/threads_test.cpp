#include "src/job/threads.h"

#include "src/job/binding.h"

#include <catch2/catch.hpp>

namespace annulus {

TEST_CASE("threads: --threads, then OMP_NUM_THREADS, then SLURM_CPUS_PER_TASK, then the affinity mask decide") {
  ThreadWishes wishes{.option = 1, .omp_num_threads = "2", .slurm_cpus_per_task = "3", .allowed = 8};
  const auto expect = [&wishes](int count, const std::string& source) {
    const Threads threads = choose_threads(wishes);
    CHECK(threads.count == count);
    CHECK(threads.source == source);
    CHECK(threads.warning.empty());
  };
  expect(1, "--threads");
  wishes.option = 0;
  expect(2, "OMP_NUM_THREADS");
  wishes.omp_num_threads = "4,2";  // of nested parallel regions; the first is ours
  expect(4, "OMP_NUM_THREADS");
  for (const char* spaced : {" 4", "4 ", " 4 , 2", "\t4\n"}) {
    wishes.omp_num_threads = spaced;
    expect(4, "OMP_NUM_THREADS");
  }
  for (const char* nonsense : {"", " ", "0", "-1", "many", "2x", "2 x", ",2"}) {
    wishes.omp_num_threads = nonsense;
    expect(3, "SLURM_CPUS_PER_TASK");
  }
  wishes.omp_num_threads = nullptr;
  expect(3, "SLURM_CPUS_PER_TASK");
  wishes.slurm_cpus_per_task = nullptr;
  expect(8, "affinity mask");
  wishes.share = 8;
  expect(8, "affinity mask");
  wishes.share = 2;
  expect(2, "share of the affinity mask");
  wishes.omp_num_threads = "5";
  expect(5, "OMP_NUM_THREADS");
}

namespace {

cpu_set_t mask(std::initializer_list<int> processors) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int processor : processors) CPU_SET(processor, &set);
  return set;
}

}  // namespace

TEST_CASE("threads: ranks that are bound to the same processors are named, unless there are no others") {
  const cpu_set_t pair = mask({0, 1}), all = mask({0, 1, 2, 3, 4, 5, 6, 7});
  const std::string open_mpi = "Open MPI v4.1.4";
  CHECK(binding_warning({pair, pair, pair, pair}, all, open_mpi) ==
        "4 of 4 ranks on this node are bound to the same processors (2 of 8 are used): start them with mpirun --map-by "
        "slot:PE=2 --bind-to core");
  CHECK(
      binding_warning({pair, mask({1, 2}), mask({3})}, all, "MPICH Version: 4.0.2") ==
      "2 of 3 ranks on this node are bound to the same processors (4 of 8 are used): start them with mpiexec -bind-to "
      "core:2");
  CHECK(binding_warning({pair, pair}, pair, open_mpi).empty());         // all that the cpuset has
  CHECK(binding_warning({all, all}, all, open_mpi).empty());            // not bound
  CHECK(binding_warning({pair, mask({2, 3})}, all, open_mpi).empty());  // bound apart
  CHECK(binding_warning({pair}, all, open_mpi).empty());
}

TEST_CASE("threads: ranks share the processors in their affinity masks") {
  using Shares = std::vector<int>;
  constexpr int kNoQuota = INT_MAX;
  const cpu_set_t all = mask({0, 1, 2, 3}), pair = mask({0, 1});
  CHECK(shares_of({all}, kNoQuota) == Shares{4});
  CHECK(shares_of({all, all}, kNoQuota) == Shares{2, 2});
  CHECK(shares_of({all, all, all}, kNoQuota) == Shares{1, 1, 1});
  CHECK(shares_of({pair, pair, pair, pair}, kNoQuota) == Shares{1, 1, 1, 1});
  CHECK(shares_of({pair, mask({2, 3})}, kNoQuota) == Shares{2, 2});     // bound apart
  CHECK(shares_of({pair, mask({1, 2, 3})}, kNoQuota) == Shares{1, 2});  // in part
  CHECK(shares_of({all, all}, 3) == Shares{1, 1});
  CHECK(shares_of({mask({0}), mask({1})}, 1) == Shares{1, 1});
  CHECK(shares_of({mask({0, 1, 2}), mask({3})}, 4) == Shares{3, 1});  // no even parts
  CHECK(shares_of({mask({0, 1, 2, 3, 4, 5}), mask({6, 7})}, 4) == Shares{3, 1});
  CHECK(shares_of({mask({})}, 4) == Shares{INT_MAX});
}

TEST_CASE("threads: more than the affinity mask allows are never used without a warning") {
  const Threads option = choose_threads({.option = 4, .allowed = 2});
  CHECK(option.count == 4);
  CHECK(option.warning.find("--threads 4 is more than the 2 processors") == 0);
  const Threads omp = choose_threads({.omp_num_threads = "4", .slurm_cpus_per_task = "1", .allowed = 2});
  CHECK(omp.count == 2);
  CHECK(omp.warning.find("OMP_NUM_THREADS asks for 4 threads") == 0);
  const Threads slurm = choose_threads({.slurm_cpus_per_task = "16", .allowed = 2});
  CHECK(slurm.count == 2);
  CHECK(slurm.warning.find("SLURM_CPUS_PER_TASK asks for 16 threads") == 0);
  const Threads quota =
      choose_threads({.omp_num_threads = "4", .allowed = 1, .allowed_by = "control group /a (cpu.max)"});
  CHECK(quota.count == 1);
  CHECK(quota.warning.find("control group /a (cpu.max) allows 1") != std::string::npos);
}

}  // namespace annulus
