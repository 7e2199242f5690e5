#include "src/job/membership.h"

#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "collectives/world/mpi_failure.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "src/io/terminal.h"
#include "src/job/job_status.h"
#include "src/job/machine.h"
#include "src/job/process_identity.h"
#include "src/job/signals.h"

namespace annulus {
namespace {

using std::chrono::duration;

constexpr int kBeats = 10;              // heartbeats within the silence that counts as a loss
constexpr int kCutOffFactor = 2;        // on that time, for a rank that hears no other node
constexpr int kBusyFactor = 5;          // the same for a rank on this node that is not stopped
constexpr int kQuietMilliseconds = 20;  // between two looks at the other ranks
constexpr int kBusyMilliseconds = 1;    // the same while ranks come to an agreement
// A report: whether the rank leaves, whether it has failed, whether it waits in agree(), the section that it has then
// completed, and each rank's standing.
constexpr std::size_t kLeaving = 0, kFailed = 1, kWaiting = 2, kSection = 3,
                      kStandings = kSection + sizeof(std::uint64_t);

constexpr double kLastWords = 3;       // seconds to wait for other ranks before this process ends
constexpr double kOthersOfHost = 0.5;  // seconds between losses on a host, on a busy machine

// After this silence, in seconds, the launcher's daemon on this node has noticed the loss of mpirun (scripts/launch):
// but if the daemon has something to report before, such as a rank's end, only after many minutes.
constexpr double kDaemonNotices = 8;

// Every rank's process, on every rank.
std::vector<ProcessIdentity> processes_of(const World& world) {
  const ProcessIdentity own = own_identity();
  const std::vector<std::byte> all = world.gather(std::as_bytes(std::span(&own, 1)));
  std::vector<ProcessIdentity> processes(all.size() / sizeof own);
  std::memcpy(processes.data(), all.data(), all.size());
  return processes;
}

std::vector<std::string> host_names(const World& world) {
  std::array<char, 64> name{};
  host_name().copy(name.data(), name.size() - 1);
  const std::vector<std::byte> all = world.gather(std::as_bytes(std::span(name)));
  std::vector<std::string> names;
  for (std::size_t begin = 0; begin < all.size(); begin += name.size())
    names.emplace_back(reinterpret_cast<const char*>(all.data() + begin));
  return names;
}

// Writes a line and ends this process immediately, whatever other threads do.
[[noreturn]] void end_with(int status, const std::string& line) {
  std::fflush(nullptr);
  if (!line.empty()) write_to_stderr(line);
  std::_Exit(status);
}

}  // namespace

Membership::Membership(World& world, double lost_after)
    : world_(world),
      channel_(world.channel()),
      lost_after_(lost_after),
      own_(static_cast<std::size_t>(world.rank())),
      peers_(static_cast<std::size_t>(world.size())) {
  std::signal(SIGPIPE, SIG_IGN);  // MPI may write to a connection that a dead rank's host has reset
  const std::vector<ProcessIdentity> processes = processes_of(world);
  const std::vector<std::string> hosts = host_names(world);
  for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
    Peer& peer = peers_[rank];
    members_.push_back(static_cast<int>(rank));
    peer.node = world.node_of(static_cast<int>(rank));
    for (std::size_t before = 0; before < rank; ++before) peer.place += peers_[before].node == peer.node ? 1 : 0;
    peer.host = hosts[rank];
    if (rank == own_) continue;
    if (peer.node == world.node_of(world.rank())) {
      peer.process = open_process(processes[rank]);
      peer.number = processes[rank].number;
    }
    peer.arriving = report();
    channel_.start_receiving(peer.arriving, static_cast<int>(rank), peer.receive);
  }
  looked_ = now_seconds();
  choose_neighbours();
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
  if (own_ == 0) report_survival();  // all ranks have taken part in gathering the above
}

Membership::~Membership() {
  thread_.request_stop();
  thread_.join();
  for (Peer& peer : peers_) {
    channel_.withdraw({&peer.receive, 1});
    channel_.give_up({&peer.send, 1});
  }
}

std::optional<std::vector<Membership::Loss>> Membership::agree(std::uint64_t completed_section) {
  std::unique_lock lock(mutex_);
  const bool may_be_lost = world_.interrupted() || mpi_has_failed();  // else the error has another cause
  const duration<double> latest(may_be_lost ? (kCutOffFactor + 0.5) * lost_after_ : 0);
  if (!changed_.wait_for(lock, latest, [this] { return disturbed_; })) return {};
  waiting_ = true;
  section_ = completed_section;
  report_to_all();
  changed_.wait(lock, [this] { return agreed(); });
  waiting_ = false;
  if (!may_go_on()) {
    const std::string line =
        fmt::format("annulus: rank {} on {}: only {} of {} ranks answer, and the others may go on: this one ends\n",
                    own_, peers_[own_].host, left(), members_.size());
    lock.unlock();
    std::this_thread::sleep_for(duration<double>(kDaemonNotices - lost_after_));
    end_with(kStoppedExitCode, line);
  }
  std::vector<Loss> losses;
  std::vector<int> members;
  for (const int rank : members_)
    if (const Peer& peer = peers_[static_cast<std::size_t>(rank)]; peer.standing == present)
      members.push_back(rank);
    else
      losses.push_back({rank, peer.host, peer.since, peer.standing == excluded});
  losses_.insert(losses_.end(), losses.begin(), losses.end());
  members_ = std::move(members);
  world_.continue_with(members_, static_cast<int>(peers_.size() - members_.size()));
  disturbed_ = false;
  return losses;
}

void Membership::exclude(int rank_in_job) {
  const std::scoped_lock lock(mutex_);
  lose(static_cast<std::size_t>(rank_in_job), excluded, now_seconds());
}

void Membership::leave(int status) {
  {
    std::unique_lock lock(mutex_);
    leaving_ = true;
    report_to_all();
    const auto stays = [this](const Peer& peer) { return peer.standing == present && !leaves(peer); };
    const auto all_leave = [&] { return std::ranges::none_of(peers_, stays); };
    // If a rank is lost now, survivors may have to repeat steps that this rank has completed.
    changed_.wait_for(lock, duration<double>(kLastWords + 2 * lost_after_), [&] { return disturbed_ || all_leave(); });
    changed_.wait_for(lock, duration<double>(kOthersOfHost), all_leave);
    if (all_leave()) report_job_status(status, std::ssize(peers_) - std::ssize(members_));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(2 * kQuietMilliseconds));  // until the other ranks know this
  end_with(status, "");
}

bool Membership::leaves(const Peer& peer) const {
  if (&peer == &peers_[own_]) return leaving_;
  return !peer.report.empty() && peer.report[kLeaving] != std::byte{0};
}

void Membership::fail_everywhere() {
  {
    const std::scoped_lock lock(mutex_);
    failed_ = true;
    report_to_all();
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(5 * kQuietMilliseconds));
}

void Membership::run(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    bool settled = true;
    {
      const std::scoped_lock lock(mutex_);
      settled = !disturbed_ || agreed();
    }
    await_processes(settled ? kQuietMilliseconds : kBusyMilliseconds);
    const std::scoped_lock lock(mutex_);
    look();
  }
}

// Returns when a process on this node has ended, or after that time.
void Membership::await_processes(int milliseconds) {
  processes_.clear();
  for (const Peer& peer : peers_)  // only this thread changes `process`
    if (peer.process) processes_.push_back({peer.process.number(), POLLIN, 0});
  poll(processes_.data(), processes_.size(), milliseconds);
}

void Membership::look() {
  const double now = now_seconds();
  if (now - looked_ > lost_after_ / 2)  // this process was frozen, so it could not hear other ranks
    for (Peer& peer : peers_) peer.heard = now;
  looked_ = now;
  for (const pollfd& process : processes_)
    if (process.revents != 0) {
      const auto peer = std::ranges::find(peers_, process.fd, [](const Peer& one) { return one.process.number(); });
      lose(static_cast<std::size_t>(peer - peers_.begin()), peer->standing == silent ? silenced : ended, now);
      peer->process = FileDescriptor(-1);
    }
  take_reports();
  notice_silence();
  if (disturbed_ && world_.within_section() && held_up()) world_.interrupt(true);
  send_reports();
  changed_.notify_all();
}

void Membership::take_reports() {
  for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
    Peer& peer = peers_[rank];
    try {
      while (peer.receive != MPI_REQUEST_NULL && channel_.test(peer.receive)) {
        peer.heard = now_seconds();
        peer.report = peer.arriving;
        channel_.start_receiving(peer.arriving, static_cast<int>(rank), peer.receive);
        take(rank, peer.report);
      }
    } catch (const Error&) {  // MPI knows that the rank has failed, as with ULFM
      peer.receive = MPI_REQUEST_NULL;
      lose(rank, silent, now_seconds());
    }
  }
}

void Membership::take(std::size_t rank, const std::vector<std::byte>& report) {
  // A rank that was cut off may believe that all other ranks are lost.
  if (peers_[rank].standing != present) return;
  if (report[kFailed] != std::byte{0} && (!failed_ || rank < own_)) end_with(EXIT_FAILURE, "");
  for (std::size_t other = 0; other < peers_.size(); ++other)
    if (const auto standing = static_cast<Standing>(report[kStandings + other]); standing != present)
      lose(other, standing, now_seconds() - (standing >= ended ? 0 : lost_after_));
}

void Membership::notice_silence() {
  const double afar = (cut_off() ? kCutOffFactor : 1) * lost_after_;
  for (std::size_t rank = 0; rank < peers_.size(); ++rank)
    if (const Peer& peer = peers_[rank]; peer.watched && peer.standing == present &&
                                         looked_ - peer.heard > lost_after_ &&
                                         looked_ - peer.heard > (on_this_node(rank) ? patience_here(peer) : afar))
      lose(rank, silent, peer.heard);
}

// On a busy machine a process may have to wait for seconds until its threads run.
double Membership::patience_here(const Peer& peer) const {
  return (peer.process && !is_stopped(peer.number) ? kBusyFactor : 1) * lost_after_;
}

bool Membership::cut_off() const {
  std::optional<int> node;
  bool several = false;
  for (const Peer& peer : peers_) {
    if (peer.node == peers_[own_].node || !(peer.watched || peer.watches)) continue;
    if (looked_ - peer.heard < lost_after_ / 2) return false;
    several = several || (node && *node != peer.node);
    node = peer.node;
  }
  return several;
}

void Membership::lose(std::size_t rank, Standing how, double since) {
  Peer& peer = peers_[rank];
  if (peer.standing != present) peer.since = std::min(peer.since, since);  // this rank may have seen the end only
  if (how <= peer.standing) return;
  if (rank == own_)
    end_with(EXIT_FAILURE,
             fmt::format("annulus: rank {} on {}: the other ranks go on without this one\n", own_, peer.host));
  if (peer.standing == present) {
    peer.since = since;
    disturbed_ = true;
    world_.lose(static_cast<int>(rank));
  }
  peer.standing = how;
  // Processes that share this node's memory must have ended before the survivors use it again.
  if (peer.process) syscall(SYS_pidfd_send_signal, peer.process.number(), SIGKILL, nullptr, 0);
  choose_neighbours();
  report_to_all();
}

void Membership::report_to_all() {
  for (Peer& peer : peers_)
    peer.news = peer.news || peer.standing == present || (!peer.informed && peer.node != peers_[own_].node);
}

// Sends reports with news, and heartbeats.
void Membership::send_reports() {
  const bool beat = looked_ - beaten_ > lost_after_ / kBeats;
  if (beat) beaten_ = looked_;
  const std::vector<std::byte> current = report();
  for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
    Peer& peer = peers_[rank];
    if (rank == own_ || !(peer.news || (beat && (peer.watches || peer.watched)))) continue;
    try {
      if (!channel_.test(peer.send)) continue;
      peer.informed = peer.standing != present;
      peer.news = false;
      peer.sent = current;
      channel_.start_sending(peer.sent, static_cast<int>(rank), peer.send);
    } catch (const Error&) {
      peer.send = MPI_REQUEST_NULL;
      lose(rank, silent, now_seconds());
    }
  }
}

// A rank watches the previous rank on the same node and, on the node before, the ranks whose place there equals this
// rank's place modulo the number of ranks on this node. So when a node is lost, each rank on it was watched by a rank
// on the next node, and still is after other ranks on the node have been given up.
void Membership::choose_neighbours() {
  std::vector<std::vector<std::size_t>> nodes;
  for (std::size_t rank = 0; rank < peers_.size(); ++rank)
    if (peers_[rank].standing == present) {
      const auto same =
          std::ranges::find(nodes, peers_[rank].node, [&](const auto& ranks) { return peers_[ranks.front()].node; });
      (same == nodes.end() ? nodes.emplace_back() : *same).push_back(rank);
    }
  const auto here = static_cast<std::size_t>(
      std::ranges::find_if(nodes, [&](const auto& ranks) { return on_this_node(ranks.front()); }) - nodes.begin());
  const auto& mine = nodes[here];
  const auto &before = nodes[(here + nodes.size() - 1) % nodes.size()], &after = nodes[(here + 1) % nodes.size()];
  const auto place = static_cast<std::size_t>(std::ranges::find(mine, own_) - mine.begin());
  std::vector<bool> watched(peers_.size()), watches(peers_.size());
  watched[mine[(place + mine.size() - 1) % mine.size()]] = true;
  watches[mine[(place + 1) % mine.size()]] = true;
  if (nodes.size() > 1) {
    for (const std::size_t rank : before)
      if (peers_[rank].place % mine.size() == place) watched[rank] = true;
    watches[after[peers_[own_].place % after.size()]] = true;
  }
  for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
    Peer& peer = peers_[rank];
    const bool known = peer.watched || peer.watches;
    peer.watched = watched[rank] && rank != own_;
    peer.watches = watches[rank] && rank != own_;
    if (!known && (peer.watched || peer.watches)) peer.heard = now_seconds();
  }
}

// Whether all survivors have reported the same losses, and the lost ranks on this node have ended.
bool Membership::agreed() const {
  return std::ranges::all_of(peers_, [&](const Peer& peer) {
    if (peer.standing != present) return peer.standing != silent || !peer.process;
    return &peer == &peers_[own_] || agrees(peer);
  });
}

bool Membership::agrees(const Peer& peer) const {
  if (peer.report.empty()) return left() == peers_.size();
  for (std::size_t rank = 0; rank < peers_.size(); ++rank)
    if ((peer.report[kStandings + rank] == std::byte{present}) != (peers_[rank].standing == present)) return false;
  return true;
}

// Whether another rank waits for an agreement on the same losses, without having completed this rank's section.
bool Membership::held_up() const {
  return std::ranges::any_of(peers_, [&](const Peer& peer) {
    if (peer.standing != present || peer.report.empty() || peer.report[kWaiting] == std::byte{0}) return false;
    std::uint64_t completed = 0;
    std::memcpy(&completed, &peer.report[kSection], sizeof completed);
    return agrees(peer) && completed != world_.section();
  });
}

bool Membership::may_go_on() const {
  std::size_t alive = 0, unknown = 0;
  std::optional<bool> first_is_alive;  // among the members that may live
  for (const int rank : members_) {
    const Standing standing = peers_[static_cast<std::size_t>(rank)].standing;
    if (standing >= silenced) continue;
    ++(standing == present ? alive : unknown);
    if (!first_is_alive) first_is_alive = standing == present;
  }
  return alive > unknown || (alive == unknown && *first_is_alive);
}

std::size_t Membership::left() const {
  return static_cast<std::size_t>(std::ranges::count(peers_, present, &Peer::standing));
}

std::vector<std::byte> Membership::report() const {
  std::vector<std::byte> bytes(kStandings);
  std::memcpy(&bytes[kSection], &section_, sizeof section_);
  bytes[kLeaving] = std::byte{leaving_};
  bytes[kFailed] = std::byte{failed_};
  bytes[kWaiting] = std::byte{waiting_};
  for (const Peer& peer : peers_) bytes.push_back(std::byte{peer.standing});
  return bytes;
}

}  // namespace annulus
