#include "tests/gpu/emulator/races.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bitset>
#include <memory>
#include <unordered_map>
#include <vector>

#include "tests/gpu/emulator/device_memory.h"
#include "tests/gpu/emulator/emulated_stream.h"
#include "tests/gpu/emulator/stream_races.h"

namespace emulated::races {
namespace {

constexpr std::uintptr_t kPage = 4096, kWord = 4;
constexpr unsigned kWarp = 32, kMostWarps = 1024 / kWarp;

enum class Access { read, write, atomic };
enum class Atomic { load, store, update };
constexpr std::array<const char*, 3> kVerbs{"reads", "writes", "atomically accesses"};
constexpr std::array<const char*, 3> kPasts{"has read", "has written", "has atomically accessed"};

// The thread that made an access, or all threads among which are those that made several. Time advances at barriers.
struct Accessed {
  enum class By : std::uint8_t { thread, warp, block, grid };

  std::uint32_t time = 0;  // of the last one
  std::uint32_t block = 0;
  std::uint16_t thread = 0;
  By by = By::thread;
};

// The accesses to a byte, or to a word if a kernel accesses a page only by words.
using Accesses = std::array<Accessed, 3>;  // by Access
struct Page {
  std::size_t unit = kWord;  // bytes
  std::array<Accesses, kPage> at;
};

// A fence. Who knows it comes after the accesses of its block before the block's last barrier, and after those of its
// thread before the fence.
struct Fence {
  std::uint32_t time = 0, barrier_time = 0, block = 0;
  unsigned thread = 0;
};
using Fences = std::vector<Fence>;

void append(Fences& to, const Fences& fences) {
  to.insert(to.end(), fences.begin(), fences.end());
}

// The fences that a thread has learned of. (A block's threads know the same after its next barrier.)
struct Learned {
  Fences seen;    // by atomic accesses: it knows them from its next fence on
  Fences known;   // and the block not yet
  Fences passed;  // its last one, and those that it knew then
};

// Of one kernel after another.
class Checker {
 public:
  void begin_kernel(bool early);
  void pass_on_accesses() const;  // to the races between streams
  void begin_block(unsigned number);
  void begin_thread(unsigned number) { thread_ = number; }
  void pass_block_barrier();
  void pass_warp_barrier(unsigned warp) { warp_passed_[warp] = ++time_; }
  void pass_fence();
  void await_predecessor() { awaited_[thread_] = true; }
  void use_stack(const void* memory, std::size_t bytes);

  void check(const void* address, std::size_t bytes, Access access, const void* code);
  void pass_on_fences(const volatile void* address, Atomic access);

 private:
  Page& page_of(std::uintptr_t address);
  bool is_latest(const Accessed& before) const;
  bool ordered(const Accessed& before, bool shared) const;
  bool knows(const Accessed& before) const;
  void add(Accessed& to, bool shared) const;
  [[noreturn]] void report(const void* address, std::size_t bytes, Access access, bool shared, Access access_before,
                           const Accessed& before, const void* code) const;

  bool early_ = false;
  std::bitset<kWarp * kMostWarps> awaited_;  // by each thread of the block

  std::uint32_t block_ = 0;  // the running thread's
  unsigned thread_ = 0;
  std::uint32_t time_ = 0, kernel_began_ = 0, block_passed_ = 0;
  std::array<std::uint32_t, kMostWarps> warp_passed_{};
  std::uintptr_t stack_ = 0;
  std::size_t stack_bytes_ = 0;

  Fences block_knows_;                             // since its last barrier
  std::unordered_map<unsigned, Learned> learned_;  // by thread of the block
  std::unordered_map<const volatile void*, Fences> passed_on_;

  std::vector<std::unique_ptr<Page>> pages_;        // kept for later kernels
  std::unordered_map<std::uintptr_t, Page*> used_;  // by number of the page
  std::uintptr_t last_number_ = 0;
  Page* last_ = nullptr;
};

void Checker::begin_kernel(bool early) {
  early_ = early;
  kernel_began_ = ++time_;
  used_.clear();
  last_ = nullptr;
  passed_on_.clear();
}

void Checker::pass_on_accesses() const {
  for (const auto& [number, page] : used_)
    for (std::size_t i = 0; i < kPage; i += page->unit) {
      const auto made = [&](Access access) {
        return page->at[i][static_cast<std::size_t>(access)].time > kernel_began_;
      };
      const auto* const address = reinterpret_cast<const void*>(number * kPage + i);
      if (made(Access::write) || made(Access::atomic))
        stream_races::write(address, page->unit);
      else if (made(Access::read))
        stream_races::read(address, page->unit);
    }
}

void Checker::begin_block(unsigned number) {
  block_ = number;
  awaited_.reset();
  block_passed_ = ++time_;
  warp_passed_.fill(0);
  block_knows_.clear();
  learned_.clear();
}

void Checker::pass_block_barrier() {
  block_passed_ = ++time_;
  for (auto& [thread, learned] : learned_) {
    append(block_knows_, learned.known);
    learned.known.clear();
  }
}

void Checker::pass_fence() {
  Learned& own = learned_[thread_];
  append(own.known, own.seen);
  own.seen.clear();
  own.passed = {{++time_, block_passed_, block_, thread_}};
  append(own.passed, own.known);
  append(own.passed, block_knows_);
}

// Who reads what an update has written learns of the fences before it, and of those that the update itself could learn.
void Checker::pass_on_fences(const volatile void* address, Atomic access) {
  Fences& here = passed_on_[address];
  Learned& own = learned_[thread_];
  if (access != Atomic::store) append(own.seen, here);
  if (access == Atomic::store) here.clear();
  if (access != Atomic::load) append(here, own.passed);
}

void Checker::use_stack(const void* memory, std::size_t bytes) {
  stack_ = reinterpret_cast<std::uintptr_t>(memory);
  stack_bytes_ = bytes;
}

Page& Checker::page_of(std::uintptr_t address) {
  const std::uintptr_t number = address / kPage;
  if (last_ != nullptr && number == last_number_) return *last_;
  Page*& page = used_[number];
  if (page == nullptr) {
    if (used_.size() > pages_.size()) pages_.push_back(std::make_unique<Page>());
    page = pages_[used_.size() - 1].get();
    page->unit = kWord;
  }
  last_number_ = number;
  last_ = page;
  return *page;
}

void split(Page& page) {
  for (std::size_t i = 0; i < kPage; ++i) page.at[i] = page.at[i / kWord * kWord];
  page.unit = 1;
}

// Whether the running thread made this access and no other thread has run since.
bool Checker::is_latest(const Accessed& before) const {
  return before.time == time_ && before.thread == thread_ && before.block == block_ &&
         before.by == Accessed::By::thread;
}

// Whether the running thread comes after all of these accesses, in every order of the threads. `shared`: among the
// threads of a block only.
bool Checker::ordered(const Accessed& before, bool shared) const {
  using By = Accessed::By;
  if (before.time < kernel_began_) return true;
  if (before.block != block_) return shared || knows(before);  // shared memory is another one then
  if (before.by == By::grid) return false;
  if (before.time < block_passed_) return true;
  if (before.by == By::block || before.thread / kWarp != thread_ / kWarp) return false;
  if (before.time < warp_passed_[thread_ / kWarp]) return true;
  return before.by == By::thread && before.thread == thread_;
}

// Whether the running thread knows a fence after these accesses of another block.
bool Checker::knows(const Accessed& before) const {
  if (before.by == Accessed::By::grid) return false;
  const auto after = [&](const Fence& fence) {
    if (fence.block != before.block) return false;
    if (before.time < fence.barrier_time) return true;
    return before.by == Accessed::By::thread && before.thread == fence.thread && before.time < fence.time;
  };
  if (std::ranges::any_of(block_knows_, after)) return true;
  const auto own = learned_.find(thread_);
  return own != learned_.end() && std::ranges::any_of(own->second.known, after);
}

// Accesses before those that are ordered need not be remembered: who comes after these comes after them as well.
void Checker::add(Accessed& to, bool shared) const {
  using By = Accessed::By;
  By by = By::thread;
  if (!ordered(to, shared))
    by = std::max(to.by, to.block != block_ ? By::grid : to.thread / kWarp != thread_ / kWarp ? By::block : By::warp);
  to = {time_, block_, static_cast<std::uint16_t>(thread_), by};
}

void Checker::check(const void* address, std::size_t bytes, Access access, const void* code) {
  const auto first = reinterpret_cast<std::uintptr_t>(address);
  if (first - stack_ < stack_bytes_) return;
  const bool words = first % kWord == 0 && bytes % kWord == 0, shared = range_of(address) != AddressRange::memory;
  if (early_ && !shared && !awaited_[thread_])
    abort_emulation("a kernel that may start early accesses memory before cudaGridDependencySynchronize");
  const auto index = static_cast<std::size_t>(access);
  std::size_t unit = 0;
  for (std::uintptr_t at = first; at < first + bytes; at += unit) {
    Page& page = page_of(at);
    if (!words && page.unit != 1) split(page);
    unit = page.unit;
    Accesses& accesses = page.at[at % kPage];
    if (is_latest(accesses[index])) continue;
    for (const Access before : {Access::read, Access::write, Access::atomic}) {
      const Accessed& accessed = accesses[static_cast<std::size_t>(before)];
      if (before == access && access != Access::write) continue;
      if (!ordered(accessed, shared)) report(address, bytes, access, shared, before, accessed, code);
    }
    add(accesses[index], shared);
  }
}

std::string name_of(const Accessed& before) {
  switch (before.by) {
    case Accessed::By::thread:
      return fmt::format("thread {} of block {}", before.thread, before.block);
    case Accessed::By::warp:
      return fmt::format("another thread of warp {} of block {}", before.thread / kWarp, before.block);
    case Accessed::By::block:
      return fmt::format("another thread of block {}", before.block);
    default:
      return "another block";
  }
}

void Checker::report(const void* address, std::size_t bytes, Access access, bool shared, Access access_before,
                     const Accessed& before, const void* code) const {
  Dl_info file{};
  dladdr(code, &file);
  const auto offset = static_cast<const std::byte*>(code) - static_cast<const std::byte*>(file.dli_fbase) - 1;
  abort_emulation(fmt::format("a race in {} memory: thread {} of block {} {} {} bytes at {} that {} {}, and neither a "
                              "barrier nor fences order them (the code: addr2line -Cfipe {} {:#x})",
                              shared ? "shared" : "device", thread_, block_, kVerbs[static_cast<std::size_t>(access)],
                              bytes, address, name_of(before), kPasts[static_cast<std::size_t>(access_before)],
                              file.dli_fname, offset)
                      .c_str());
}

thread_local std::unique_ptr<Checker> checker;  // from the first kernel on
constinit thread_local Checker* checking = nullptr;

}  // namespace

void begin_kernel(bool early) {
  if (!checker) checker = std::make_unique<Checker>();
  checking = checker.get();
  checking->begin_kernel(early);
}

void end_kernel() {
  if (checking != nullptr && stream_races::on()) checking->pass_on_accesses();
  checking = nullptr;
}

void begin_block(unsigned number) {
  if (checking != nullptr) checking->begin_block(number);
}

void begin_thread(unsigned number) {
  if (checking != nullptr) checking->begin_thread(number);
}

void pass_block_barrier() {
  if (checking != nullptr) checking->pass_block_barrier();
}

void pass_warp_barrier(unsigned warp) {
  if (checking != nullptr) checking->pass_warp_barrier(warp);
}

void await_predecessor() {
  if (checking != nullptr) checking->await_predecessor();
}

void pass_fence() {
  if (checking != nullptr) checking->pass_fence();
}

void use_stack(const void* memory, std::size_t bytes) {
  if (checking != nullptr) checking->use_stack(memory, bytes);
}

namespace {

inline void check(const volatile void* address, std::size_t bytes, Access access, const void* code) {
  if (checking != nullptr) checking->check(const_cast<const void*>(address), bytes, access, code);
}

inline void check_atomic(const volatile void* address, std::size_t bytes, Atomic access, const void* code) {
  if (checking == nullptr) return;
  checking->check(const_cast<const void*>(address), bytes, Access::atomic, code);
  checking->pass_on_fences(address, access);
}

}  // namespace
}  // namespace emulated::races

// The functions that the compiler calls.

using emulated::races::Access;
using emulated::races::Atomic;
using emulated::races::check;
using emulated::races::check_atomic;

#define CODE __builtin_return_address(0)

#define ACCESSES_OF(bytes)                            \
  void __tsan_read##bytes(void* address) {            \
    check(address, bytes, Access::read, CODE);        \
  }                                                   \
  void __tsan_write##bytes(void* address) {           \
    check(address, bytes, Access::write, CODE);       \
  }                                                   \
  void __tsan_unaligned_read##bytes(void* address) {  \
    check(address, bytes, Access::read, CODE);        \
  }                                                   \
  void __tsan_unaligned_write##bytes(void* address) { \
    check(address, bytes, Access::write, CODE);       \
  }

#define ATOMIC_UPDATE(bits, name)                                                                                    \
  std::uint##bits##_t __tsan_atomic##bits##_##name(volatile std::uint##bits##_t* address, std::uint##bits##_t value, \
                                                   int) {                                                            \
    check_atomic(address, bits / 8, Atomic::update, CODE);                                                           \
    return __atomic_##name(address, value, __ATOMIC_SEQ_CST);                                                        \
  }

#define ATOMICS_OF(bits)                                                                                               \
  std::uint##bits##_t __tsan_atomic##bits##_load(const volatile std::uint##bits##_t* address, int) {                   \
    check_atomic(address, bits / 8, Atomic::load, CODE);                                                               \
    return __atomic_load_n(address, __ATOMIC_SEQ_CST);                                                                 \
  }                                                                                                                    \
  void __tsan_atomic##bits##_store(volatile std::uint##bits##_t* address, std::uint##bits##_t value, int) {            \
    check_atomic(address, bits / 8, Atomic::store, CODE);                                                              \
    __atomic_store_n(address, value, __ATOMIC_SEQ_CST);                                                                \
  }                                                                                                                    \
  std::uint##bits##_t __tsan_atomic##bits##_exchange(volatile std::uint##bits##_t* address, std::uint##bits##_t value, \
                                                     int) {                                                            \
    check_atomic(address, bits / 8, Atomic::update, CODE);                                                             \
    return __atomic_exchange_n(address, value, __ATOMIC_SEQ_CST);                                                      \
  }                                                                                                                    \
  int __tsan_atomic##bits##_compare_exchange_strong(                                                                   \
      volatile std::uint##bits##_t* address, std::uint##bits##_t* expected, std::uint##bits##_t value, int, int) {     \
    const bool exchanged =                                                                                             \
        __atomic_compare_exchange_n(address, expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);              \
    check_atomic(address, bits / 8, exchanged ? Atomic::update : Atomic::load, CODE);                                  \
    return exchanged;                                                                                                  \
  }                                                                                                                    \
  int __tsan_atomic##bits##_compare_exchange_weak(                                                                     \
      volatile std::uint##bits##_t* address, std::uint##bits##_t* expected, std::uint##bits##_t value, int, int) {     \
    const bool exchanged =                                                                                             \
        __atomic_compare_exchange_n(address, expected, value, true, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);               \
    check_atomic(address, bits / 8, exchanged ? Atomic::update : Atomic::load, CODE);                                  \
    return exchanged;                                                                                                  \
  }                                                                                                                    \
  ATOMIC_UPDATE(bits, fetch_add)                                                                                       \
  ATOMIC_UPDATE(bits, fetch_sub)                                                                                       \
  ATOMIC_UPDATE(bits, fetch_and)                                                                                       \
  ATOMIC_UPDATE(bits, fetch_or)

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}

ACCESSES_OF(1)
ACCESSES_OF(2)
ACCESSES_OF(4)
ACCESSES_OF(8)
ACCESSES_OF(16)
void __tsan_read_range(void* address, std::size_t bytes) {
  check(address, bytes, Access::read, CODE);
}
void __tsan_write_range(void* address, std::size_t bytes) {
  check(address, bytes, Access::write, CODE);
}
ATOMICS_OF(8)
ATOMICS_OF(32)
ATOMICS_OF(64)

}  // extern "C"
