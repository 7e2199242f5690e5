#include "tests/gpu/emulator/stream_races.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "tests/gpu/emulator/device_memory.h"
#include "tests/gpu/emulator/emulated_stream.h"

namespace emulated::stream_races {
namespace {

constexpr std::uintptr_t kPage = 4096, kWord = 4;

struct Access {
  std::uint32_t thread, time;
};

// The last write, and each thread's last read since.
struct Word {
  Access written{};
  std::vector<Access> read;
};
using Page = std::array<Word, kPage / kWord>;

// Of all threads.
struct Shared {
  std::mutex mutex;
  std::unordered_map<std::uintptr_t, std::unique_ptr<Page>> pages;                        // by number
  std::unordered_map<const void*, std::vector<std::pair<std::uint32_t, Clock>>> signals;  // in their order
};

Shared& shared() {
  static auto* const all = new Shared;  // never destroyed, like the streams
  return *all;
}

// The running thread.
class Thread {
 public:
  Thread() : number_(next_++) { own() = 1; }

  std::uint32_t number() const { return number_; }
  std::uint32_t time() { return own(); }

  Clock release() {
    Clock known = clock_;
    ++own();
    return known;
  }
  void acquire(const Clock& clock) {
    clock_.resize(std::max(clock_.size(), clock.size()));
    for (std::size_t i = 0; i < clock.size(); ++i) clock_[i] = std::max(clock_[i], clock[i]);
  }
  bool knows(const Access& access) const {
    return access.time == 0 || (access.thread < clock_.size() && access.time <= clock_[access.thread]);
  }

 private:
  std::uint32_t& own() {
    clock_.resize(std::max<std::size_t>(clock_.size(), number_ + 1));
    return clock_[number_];
  }

  static inline std::atomic<std::uint32_t> next_ = 0;
  const std::uint32_t number_;
  Clock clock_;
};

Thread& running() {
  static thread_local Thread thread;
  return thread;
}

void expect_known(const Access& before, const char* verb, const char* past, std::uintptr_t address) {
  if (running().knows(before)) return;
  abort_emulation(fmt::format("a race between streams: thread {} {} {:#x}, which thread {} has {}, and neither events "
                              "nor flags order them",
                              running().number(), verb, address, before.thread, past)
                      .c_str());
}

template <class Visit>
void for_each_word(const void* address, std::size_t bytes, const Visit& visit) {
  if (!on() || bytes == 0 || range_of(address) != AddressRange::memory) return;
  const std::scoped_lock lock(shared().mutex);
  const std::uintptr_t begin = reinterpret_cast<std::uintptr_t>(address), end = begin + bytes;
  for (std::uintptr_t at = begin / kWord * kWord; at < end; at += kWord) {
    std::unique_ptr<Page>& page = shared().pages[at / kPage];
    if (!page) page = std::make_unique<Page>();
    visit((*page)[at % kPage / kWord], at);
  }
}

}  // namespace

bool on() {
  const char* const text = std::getenv("ANNULUS_EMULATED_RACES");
  return text != nullptr && std::string_view(text) == "streams";
}

Clock release() {
  return on() ? running().release() : Clock{};
}

void acquire(const Clock& clock) {
  if (on()) running().acquire(clock);
}

void signal(const void* word, std::uint32_t before, std::uint32_t value) {
  if (!on()) return;
  const std::scoped_lock lock(shared().mutex);
  auto& signals = shared().signals[word];
  if (signals.empty()) signals.emplace_back(before, Clock{});
  signals.emplace_back(value, running().release());
}

void await(const void* word, std::uint32_t value) {
  if (!on()) return;
  const std::scoped_lock lock(shared().mutex);
  const auto& signals = shared().signals[word];
  const auto first = std::ranges::find_if(
      signals, [value](const auto& signal) { return static_cast<std::int32_t>(signal.first - value) >= 0; });
  if (first != signals.end()) running().acquire(first->second);
}

void read(const void* address, std::size_t bytes) {
  for_each_word(address, bytes, [](Word& word, std::uintptr_t at) {
    expect_known(word.written, "reads", "written", at);
    const Access own{running().number(), running().time()};
    const auto before = std::ranges::find(word.read, own.thread, &Access::thread);
    if (before == word.read.end())
      word.read.push_back(own);
    else
      *before = own;
  });
}

void write(const void* address, std::size_t bytes) {
  for_each_word(address, bytes, [](Word& word, std::uintptr_t at) {
    expect_known(word.written, "writes", "written", at);
    for (const Access& read : word.read) expect_known(read, "writes", "read", at);
    word = {{running().number(), running().time()}, {}};
  });
}

}  // namespace emulated::stream_races
