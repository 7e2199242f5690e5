#include "collectives/library/watch.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <new>

namespace annulus {
namespace {

constexpr int kPollsOfTimeout = 20;  // polls within the timeout
constexpr double kLongestPause = 0.2, kShortestPause = 0.01;
constexpr double kAbsentSeconds = 1;  // without progress, after which an operation needs a process that has ended

using HostName = std::array<char, 64>;

// Identifies the namespace of process numbers: they differ between containers.
std::uint64_t process_namespace() {
  struct stat status {};
  return stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

}  // namespace

// What a rank shows to the node's other ranks.
struct Watch::Board {
  pid_t process = getpid();
  std::uint64_t process_namespace = annulus::process_namespace();
  std::atomic<bool> leaves = false;  // written after the following
  std::uint64_t operations = 0, allocations = 0;
  char reason[200] = {};
  std::atomic<int> status = ANNULUS_OK;  // written after the text
  char text[500] = {};
};

Watch::Watch(const World& world, double timeout_seconds, std::function<Position()> position,
             std::function<void(const Failure&)> failed)
    : seconds_(timeout_seconds),
      pause_seconds_(std::clamp(timeout_seconds / kPollsOfTimeout, kShortestPause, kLongestPause)),
      position_(std::move(position)),
      failed_(std::move(failed)) {
  HostName own{};
  gethostname(own.data(), own.size() - 1);
  const std::vector<std::byte> names = world.gather(std::as_bytes(std::span(own)));
  for (std::size_t at = 0; at < names.size(); at += own.size())
    hosts_.emplace_back(reinterpret_cast<const char*>(&names[at]));
  const World node = world.node();
  memory_ = std::make_unique<SharedMemory>(node);
  try {
    const auto part = memory_->allocate(sizeof(Board));
    board_ = new (part.data()) Board;
    node.barrier();  // all boards are initialized
    const auto boards = memory_->everywhere(part);
    for (int rank = 0; rank < node.size(); ++rank)
      if (rank != node.rank())
        peers_.push_back(
            {node.rank_in_job(rank), reinterpret_cast<const Board*>(boards[static_cast<std::size_t>(rank)])});
  } catch (const NoSharedMemory&) {  // then only the timeout ends a wait for a lost rank
  }
  for (Peer& peer : peers_)
    if (peer.board->process_namespace == board_->process_namespace)
      peer.process = static_cast<int>(syscall(SYS_pidfd_open, peer.board->process, 0));
  stop_ = eventfd(0, EFD_CLOEXEC);
}

void Watch::start() {
  thread_ = std::jthread([this] { run(); });
}

Watch::~Watch() {
  const std::uint64_t one = 1;
  if (write(stop_, &one, sizeof(one)) < 0) std::abort();  // never: the counter is 0
  if (thread_.joinable()) thread_.join();
  close(stop_);
  for (const Peer& peer : peers_)
    if (peer.process >= 0) close(peer.process);
}

std::string Watch::name(int rank) const {
  return fmt::format("rank {} on {}", rank, hosts_.at(static_cast<std::size_t>(rank)));
}

void Watch::report(const Failure& failure) {
  if (board_ == nullptr) return;
  std::strncpy(board_->text, failure.text.c_str(), sizeof(board_->text) - 1);
  board_->status = failure.status;
}

void Watch::leave(std::uint64_t operations, std::uint64_t allocations, const std::string& reason) {
  if (board_ == nullptr || board_->leaves) return;
  board_->operations = operations;
  board_->allocations = allocations;
  std::strncpy(board_->reason, reason.c_str(), sizeof(board_->reason) - 1);
  board_->leaves = true;
}

void Watch::run() {
  std::vector<pollfd> files{{stop_, POLLIN, 0}};
  for (const Peer& peer : peers_) files.push_back({peer.process, POLLIN, 0});  // poll() ignores negative ones
  while (true) {
    const int ready = poll(files.data(), files.size(), static_cast<int>(1000 * pause_seconds_));
    if (files[0].revents != 0) return;
    Failure failure;
    if (found_failure(failure)) return failed_(failure);
    for (std::size_t i = 0; ready > 0 && i < peers_.size(); ++i)
      if (files[i + 1].revents != 0) {
        files[i + 1].fd = -1;
        peers_[i].ended = true;
        if (peers_[i].board->leaves) continue;
        return failed_({ANNULUS_LOST, fmt::format("{} (process {}) has ended{}", name(peers_[i].rank),
                                                  peers_[i].board->process, position_().text)});
      }
    const Position now = position_();
    if (ready == 0 && stalled(now, failure)) return failed_(failure);
    if (needs_absent(now, failure)) return failed_(failure);
  }
}

bool Watch::found_failure(Failure& failure) {
  const auto peer = std::ranges::find_if(peers_, [](const Peer& other) { return other.board->status != ANNULUS_OK; });
  if (peer == peers_.end()) return false;
  failure = {static_cast<annulus_status>(peer->board->status.load()), peer->board->text};
  return true;
}

// An operation that the rank has taken part in may still run here, and is completed without the rank.
bool Watch::needs_absent(const Position& now, Failure& failure) {
  const auto needed = [&](const Peer& peer) {
    const Board& board = *peer.board;
    return board.leaves && (now.operation > board.operations || now.allocation > board.allocations ||
                            (peer.ended && now.busy && still_seconds() > kAbsentSeconds));
  };
  const auto peer = std::ranges::find_if(peers_, needed);
  if (peer == peers_.end()) return false;
  failure = {ANNULUS_LOST, fmt::format("{} (process {}) has left{}: {}", name(peer->rank), peer->board->process,
                                       now.text, peer->board->reason)};
  return true;
}

bool Watch::stalled(const Position& now, Failure& failure) {
  still_ = now.busy && now.moves == moves_ ? still_ + 1 : 0;
  moves_ = now.moves;
  if (still_seconds() < seconds_) return false;
  failure = {ANNULUS_TIMEOUT, fmt::format("no progress for {:g} s{}", seconds_, now.text)};
  return true;
}

}  // namespace annulus
