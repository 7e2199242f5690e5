#include "collectives/library/start_limit.h"

#include <chrono>

#include "collectives/world/mpi.h"

namespace annulus {
namespace {

constexpr auto kStartPause = std::chrono::microseconds(200);

std::string timeout_text(double seconds, std::string_view happened) {
  return fmt::format("the start of the group took longer than {:g} s: a rank {}", seconds, happened);
}

}  // namespace

void expect_all_ranks(MPI_Comm ranks, double timeout_seconds) {
  const auto latest = std::chrono::steady_clock::now() + std::chrono::duration<double>(timeout_seconds);
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Ibarrier(ranks, &request));
  for (int done = 0; done == 0; std::this_thread::sleep_for(kStartPause)) {
    if (std::chrono::steady_clock::now() > latest)
      throw StartTimeout(timeout_text(timeout_seconds, "has not called it, or has ended"));
    check(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
  }
}

StartLimit::StartLimit(const World& world, double timeout_seconds)
    : seconds_(timeout_seconds), thread_([this, &world] {
        std::unique_lock lock(mutex_);
        if (changed_.wait_for(lock, std::chrono::duration<double>(seconds_), [this] { return over_; })) return;
        expired_ = true;
        world.interrupt(true);
      }) {}

StartLimit::~StartLimit() {
  {
    const std::scoped_lock lock(mutex_);
    over_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void StartLimit::expect_not_expired() const {
  if (expired_) throw StartTimeout(timeout_text(seconds_, "is frozen, or has ended"));
}

}  // namespace annulus
