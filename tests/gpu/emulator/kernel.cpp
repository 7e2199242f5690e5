#undef _FORTIFY_SOURCE  // its longjmp refuses to switch stacks

#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "tests/gpu/emulator/emulated_stream.h"
#include "tests/gpu/emulator/races.h"

// How a block runs: its threads are fibers, of which one runs at a time until it comes to a barrier. A fiber whose
// thread ends begins the next thread itself, so a block without barriers runs on a single fiber.

namespace emulated {
namespace {

// AddressSanitizer must be informed before and after each switch between stacks.
#ifdef __SANITIZE_ADDRESS__
void leave_stack(void** left, const void* bottom, std::size_t bytes) {
  __sanitizer_start_switch_fiber(left, bottom, bytes);
}
void arrive(void* left, const void** from, std::size_t* bytes) {
  __sanitizer_finish_switch_fiber(left, from, bytes);
}
void forget_stack(const void* memory, std::size_t bytes) {
  ASAN_UNPOISON_MEMORY_REGION(memory, bytes);
}
#else
void leave_stack(void**, const void*, std::size_t) {}
void arrive(void*, const void**, std::size_t*) {}
void forget_stack(const void*, std::size_t) {}
#endif

// A stack with a guard page below it, and its execution state. ucontext only starts it: later switches are jumps, which
// avoid system calls.
class Fiber {
 public:
  explicit Fiber(void (*body)()) : body_(body) {
    memory_ = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory_ == MAP_FAILED) abort_emulation("no memory for a thread's stack");
    mprotect(memory_, kGuardBytes, PROT_NONE);
  }
  ~Fiber() {
    forget_stack(memory_, kStackBytes);
    munmap(memory_, kStackBytes);
  }
  Fiber(const Fiber&) = delete;

  // Called by the scheduler; returns when the fiber calls suspend().
  void resume() {
    if (_setjmp(scheduler_) != 0) return arrive(scheduler_left_, nullptr, nullptr);
    leave_stack(&scheduler_left_, memory_, kStackBytes);
    if (started_) _longjmp(self_, 1);
    started_ = true;
    ucontext_t start;
    getcontext(&start);
    start.uc_stack = {memory_, 0, kStackBytes};
    start.uc_link = nullptr;  // body never returns
    makecontext(&start, body_, 0);
    setcontext(&start);
  }

  void suspend() {
    if (_setjmp(self_) != 0) return arrive(self_left_, &scheduler_stack_, &scheduler_bytes_);
    leave_stack(&self_left_, scheduler_stack_, scheduler_bytes_);
    _longjmp(scheduler_, 1);
  }

  void use_stack() const { races::use_stack(memory_, kStackBytes); }

  // To be called first by the body.
  void begin() { arrive(nullptr, &scheduler_stack_, &scheduler_bytes_); }

 private:
  static constexpr std::size_t kStackBytes = 256 << 10, kGuardBytes = 4096;

  void (*body_)();
  void* memory_;
  bool started_ = false;
  jmp_buf self_, scheduler_;
  void *self_left_ = nullptr, *scheduler_left_ = nullptr;  // AddressSanitizer's
  const void* scheduler_stack_ = nullptr;
  std::size_t scheduler_bytes_ = 0;
};

enum class Order { forward, reverse, shuffle };

Order order_asked_for() {
  const char* text = std::getenv("ANNULUS_EMULATED_ORDER");
  const std::string name = text == nullptr ? "" : text;
  if (name == "reverse") return Order::reverse;
  if (name == "shuffle") return Order::shuffle;
  if (!name.empty() && name != "forward") abort_emulation("ANNULUS_EMULATED_ORDER: known are reverse and shuffle");
  return Order::forward;
}

template <class Things>
void put_in_order(Things& things, Order order, std::minstd_rand& random) {
  if (order == Order::reverse) std::ranges::reverse(things);
  if (order == Order::shuffle) std::ranges::shuffle(things, random);
}

// A thread's state at a barrier.
struct Waiting {
  enum class For { nothing, block, warp };

  For what = For::nothing;
  BlockVote vote = BlockVote::none;
  WarpOperation operation = WarpOperation::sync;
  unsigned mask = 0;
  int source_lane = 0;
  std::uint64_t value = 0;   // the value that it passes to others
  std::uint64_t result = 0;  // the value that it receives
};

struct Thread {
  bool done = false;
  bool awaited_predecessor = false;
  Fiber* fiber = nullptr;  // while it waits
  Waiting waiting;
};

class Block;
thread_local Block* running = nullptr;

// Runs blocks on the calling stream's thread.
class Block {
 public:
  // `early`: of a kernel that may start before its predecessor has ended.
  void run(const Work& thread, unsigned number, unsigned count, bool early, Order order, std::minstd_rand& random);

  void suspend(const Waiting& waiting);  // of the current thread
  Waiting& waiting() { return threads_[current_].waiting; }
  void await_predecessor() { threads_[current_].awaited_predecessor = true; }

 private:
  static constexpr unsigned kWarp = 32;

  static void fiber_body();
  void run_threads();  // on a fiber: those that have not begun
  void resume(Fiber* fiber);
  void select(unsigned thread);
  bool release_block();
  bool release_warp(unsigned first);
  bool release_warp_group(unsigned first, const Waiting& asked);
  void make_ready(unsigned thread);

  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> free_fibers_;

  const Work* work_ = nullptr;
  bool early_ = false;
  Order order_ = Order::forward;
  std::minstd_rand* random_ = nullptr;
  std::vector<Thread> threads_;
  std::vector<unsigned> to_begin_, ready_;  // taken from the back
  std::size_t done_ = 0;
  unsigned current_ = 0;
  Fiber* fiber_ = nullptr;  // that runs now
};

void Block::select(unsigned thread) {
  current_ = thread;
  races::begin_thread(thread);
  threadIdx = {thread % blockDim.x, thread / blockDim.x % blockDim.y, thread / (blockDim.x * blockDim.y)};
}

void Block::fiber_body() {
  running->fiber_->begin();
  for (;;) {
    Block& block = *running;
    block.run_threads();
    block.free_fibers_.push_back(block.fiber_);
    block.fiber_->suspend();
  }
}

void Block::run_threads() {
  while (!to_begin_.empty()) {
    select(to_begin_.back());
    to_begin_.pop_back();
    (*work_)();
    if (early_ && !threads_[current_].awaited_predecessor)
      abort_emulation("a kernel that may start early ends without cudaGridDependencySynchronize");
    threads_[current_].done = true;
    ++done_;
  }
}

void Block::resume(Fiber* fiber) {
  fiber_ = fiber;
  fiber->use_stack();
  fiber->resume();
}

void Block::suspend(const Waiting& waiting) {
  Thread& thread = threads_[current_];
  thread.waiting = waiting;
  thread.fiber = fiber_;
  fiber_->suspend();
}

void Block::run(const Work& thread, unsigned number, unsigned count, bool early, Order order,
                std::minstd_rand& random) {
  running = this;
  races::begin_block(number);
  work_ = &thread;
  early_ = early;
  order_ = order;
  random_ = &random;
  done_ = 0;
  threads_.assign(count, {});
  to_begin_.resize(count);
  std::iota(to_begin_.rbegin(), to_begin_.rend(), 0u);
  put_in_order(to_begin_, order, random);

  while (done_ < count) {
    if (!to_begin_.empty()) {
      if (free_fibers_.empty()) {
        fibers_.push_back(std::make_unique<Fiber>(&Block::fiber_body));
        free_fibers_.push_back(fibers_.back().get());
      }
      Fiber* const fiber = free_fibers_.back();
      free_fibers_.pop_back();
      resume(fiber);
    } else if (!ready_.empty()) {
      select(ready_.back());
      ready_.pop_back();
      resume(threads_[current_].fiber);
    } else {
      bool released = false;
      for (unsigned first = 0; first < count; first += kWarp) released |= release_warp(first);
      if (!released && !release_block())
        abort_emulation("a block's threads wait for each other at different barriers, or for one that has ended");
      std::ranges::sort(ready_, std::greater());
      put_in_order(ready_, order, random);
    }
  }
  running = nullptr;
}

void Block::make_ready(unsigned thread) {
  threads_[thread].waiting.what = Waiting::For::nothing;
  ready_.push_back(thread);
}

// CUDA requires that all of a block's threads reach a barrier, or none.
bool Block::release_block() {
  int votes = 0;
  for (const Thread& thread : threads_) {
    if (thread.done || thread.waiting.what != Waiting::For::block) return false;
    if (thread.waiting.vote != threads_[0].waiting.vote) return false;
    votes += thread.waiting.value != 0;
  }
  const int count = static_cast<int>(threads_.size());
  for (unsigned i = 0; i < threads_.size(); ++i) {
    const BlockVote vote = threads_[i].waiting.vote;
    threads_[i].waiting.result = static_cast<unsigned>(vote == BlockVote::all   ? votes == count
                                                       : vote == BlockVote::any ? votes != 0
                                                                                : votes);
    make_ready(i);
  }
  races::pass_block_barrier();
  return true;
}

bool Block::release_warp(unsigned first) {
  bool released = false;
  const unsigned end = std::min<unsigned>(first + kWarp, static_cast<unsigned>(threads_.size()));
  for (unsigned i = first; i < end; ++i)
    if (threads_[i].waiting.what == Waiting::For::warp) released |= release_warp_group(first, threads_[i].waiting);
  return released;
}

// If all of the mask's living threads wait for the same.
bool Block::release_warp_group(unsigned first, const Waiting& asked) {
  const Waiting like = asked;
  std::array<std::uint64_t, kWarp> given;
  given.fill(~std::uint64_t{0});  // the value of lanes that do not participate
  unsigned members = 0, ballot = 0;
  for (unsigned lane = 0; lane < kWarp && first + lane < threads_.size(); ++lane) {
    const Thread& thread = threads_[first + lane];
    if ((like.mask >> lane & 1) == 0 || thread.done) continue;
    const Waiting& its = thread.waiting;
    if (its.what != Waiting::For::warp || its.mask != like.mask || its.operation != like.operation) return false;
    given[lane] = its.value;
    members |= 1u << lane;
    ballot |= static_cast<unsigned>(its.value != 0) << lane;
  }
  for (unsigned lane = 0; lane < kWarp; ++lane) {
    if ((members >> lane & 1) == 0) continue;
    Waiting& its = threads_[first + lane].waiting;
    its.result =
        its.operation == WarpOperation::ballot ? ballot : given[static_cast<unsigned>(its.source_lane) % kWarp];
    make_ready(first + lane);
  }
  if (like.operation == WarpOperation::sync) races::pass_warp_barrier(first / kWarp);
  return true;
}

void run_grid(const Work& thread, dim3 grid, dim3 block, std::size_t shared_bytes, bool early, Order order,
              bool check_races, unsigned seed) {
  thread_local Block runner;
  thread_local std::vector<unsigned> blocks;
  std::minstd_rand random(seed);
  if (check_races) races::begin_kernel(early);
  gridDim = grid;
  blockDim = block;
  blocks.resize(std::size_t{grid.x} * grid.y * grid.z);
  std::iota(blocks.begin(), blocks.end(), 0u);
  put_in_order(blocks, order, random);
  for (const unsigned i : blocks) {
    blockIdx = {i % grid.x, i / grid.x % grid.y, i / (grid.x * grid.y)};
    std::memset(shared_memory(), 0xff, shared_bytes);  // NaNs
    runner.run(thread, i, block.x * block.y * block.z, early, order, random);
  }
  races::end_kernel();
}

}  // namespace

std::byte* shared_memory() {
  alignas(1024) static thread_local std::byte memory[kSharedBytes];
  return memory;
}

int block_barrier(BlockVote vote, int predicate) {
  if (running == nullptr) abort_emulation("__syncthreads outside of a kernel");
  running->suspend({.what = Waiting::For::block, .vote = vote, .value = predicate != 0});
  return static_cast<int>(running->waiting().result);
}

std::uint64_t warp_barrier(WarpOperation operation, unsigned mask, std::uint64_t value, int source_lane) {
  if (running == nullptr) abort_emulation("a warp's operation outside of a kernel");
  if ((mask >> lane() & 1) == 0) abort_emulation("a thread is not in the mask of its own warp operation");
  running->suspend(
      {.what = Waiting::For::warp, .operation = operation, .mask = mask, .source_lane = source_lane, .value = value});
  return running->waiting().result;
}

void await_predecessor() {
  if (running == nullptr) abort_emulation("cudaGridDependencySynchronize outside of a kernel");
  running->await_predecessor();
  races::await_predecessor();
}

unsigned lane() {
  return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % warpSize;
}

void fence(FenceScope scope) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (scope == FenceScope::device) races::pass_fence();
}

cudaError_t launch(const cudaLaunchConfig_t& configuration, Work thread) {
  constexpr unsigned kMostThreads = 1024, kMostRows = 65535;
  const dim3 grid = configuration.gridDim, block = configuration.blockDim;
  const std::uint64_t threads = std::uint64_t{block.x} * block.y * block.z;
  const std::uint64_t blocks = std::uint64_t{grid.x} * grid.y * grid.z;
  if (threads == 0 || threads > kMostThreads || block.z > 64) return remember(cudaErrorInvalidConfiguration);
  if (blocks == 0 || blocks > 0x7fffffff || grid.y > kMostRows || grid.z > kMostRows)
    return remember(cudaErrorInvalidConfiguration);
  const std::size_t shared_bytes = configuration.dynamicSmemBytes;
  if (shared_bytes > kSharedBytes) return remember(cudaErrorInvalidValue);
  // A kernel that may start early runs in its turn nevertheless, but must not rely on that.
  bool early = false;
  for (unsigned i = 0; i < configuration.numAttrs; ++i)
    early |= configuration.attrs[i].val.programmaticStreamSerializationAllowed != 0;

  if (resolve(configuration.stream).device() != current_device()) return remember(cudaErrorInvalidResourceHandle);

  static std::atomic<unsigned> launches{0};
  const unsigned seed = ++launches;
  const Order order = order_asked_for();
  const bool check_races = std::getenv("ANNULUS_EMULATED_RACES") != nullptr;
  return enqueue(configuration.stream, [=, thread = std::move(thread)] {
    run_grid(thread, grid, block, shared_bytes, early, order, check_races, seed);
  });
}

}  // namespace emulated

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  attributes->ptxVersion = 90;
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int value) {
  return value <= static_cast<int>(emulated::kSharedBytes) ? cudaSuccess : emulated::remember(cudaErrorInvalidValue);
}
