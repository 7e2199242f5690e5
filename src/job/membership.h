#pragma once

#include <poll.h>

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "collectives/world/world.h"
#include "src/io/file_descriptor.h"

namespace annulus {

// Which ranks of a job are left, as the survivors agree. On a separate thread, every rank watches
//
//   the processes on this node    their end, if they can be opened: they share a PID namespace
//   some neighbours               their heartbeats: the previous rank on this node, and counterparts on the
//                                 node before
//
// and reports losses to all other ranks, which add them to their own reports. A rank also hears its watchers. A rank
// that hears no other node, although there are several, is probably cut off: it waits twice as long, so that the other
// nodes give it up and not it them.
//
// A rank on this node whose process runs may only lack a processor: it counts as frozen after kBusyFactor times as
// long, unless a signal has stopped it.
//
// A rank that was reported lost stays lost, so the survivors agree as soon as all have reported the same losses. A rank
// that was given up but lives ends itself as soon as it hears of that; the survivors on the node end it if they can
// open its process.
//
// MPI is only used to exchange messages: Open MPI still delivers the survivors' messages if it was started so that it
// does not end the job (mpirun --enable-recovery, in version 5 --with-ft ulfm).
class Membership {
 public:
  struct Loss {
    int rank;  // in the job
    std::string host;
    double since;   // in now_seconds(): when the rank ended, or was last heard
    bool excluded;  // by exclude()
  };

  // From now on, a loss interrupts `world` (World::lose). `lost_after`: seconds of silence after which a rank counts as
  // lost. Collective. REQUIRES: `world` has all ranks of the job.
  Membership(World& world, double lost_after);
  ~Membership();

  // Waits until the survivors agree on the losses since the last call, and continues the world without the lost ranks.
  // Returns nothing if no exchange was interrupted or failed, or if there were no losses within the time that it takes
  // to notice a loss: an error has another cause. Ends this process with kStoppedExitCode if too few ranks are left:
  // other ranks that live may go on instead. That is, if the ranks whose end nobody has seen are the majority, or half
  // of all and include the lowest rank.
  //
  // `completed_section`: the number of the section that this rank has just completed (World::begin_section), or
  // kNoSection. Ranks in another section need this rank, so the loss interrupts them now.
  std::optional<std::vector<Loss>> agree(std::uint64_t completed_section = kNoSection);
  static constexpr std::uint64_t kNoSection = UINT64_MAX;

  const std::vector<Loss>& losses() const { return losses_; }  // all that the survivors have agreed on
  std::size_t ranks_in_job() const { return peers_.size(); }   // lost ranks included

  // Gives up a rank, which ends itself.
  void exclude(int rank_in_job);

  // Ends this process without MPI_Finalize, which would wait for lost ranks, when all other ranks do the same. Each
  // reports the status (job_status.h): only the last to end knows that it is the last.
  [[noreturn]] void leave(int status);

  // Ends all ranks, because of an error on this rank.
  void fail_everywhere();

 private:
  // A silent rank is silenced when the process has been seen to end. A rank that was excluded stays so.
  enum Standing : std::uint8_t { present, silent, silenced, ended, excluded };

  struct Peer {
    int node = 0;
    std::size_t place = 0;  // on the peer's node, counting also ranks that were lost
    std::string host;
    FileDescriptor process{-1};  // while it runs on this node, if it is proven to be the rank's (process_identity.h)
    std::uint64_t number = 0;    // the process's
    Standing standing = present;
    double since = 0;                       // the time of the loss
    double heard = 0;                       // last
    bool watched = false, watches = false;  // by and of this rank
    bool informed = false;                  // that it was given up
    std::vector<std::byte> report;          // the last, empty if there was none
    std::vector<std::byte> arriving, sent;  // messages in flight
    MPI_Request receive = MPI_REQUEST_NULL, send = MPI_REQUEST_NULL;
    bool news = false;  // it has not been sent the current report
  };

  void run(const std::stop_token& stop);
  void look();
  void await_processes(int milliseconds);
  void take_reports();
  void take(std::size_t rank, const std::vector<std::byte>& report);
  void notice_silence();
  bool cut_off() const;
  double patience_here(const Peer& peer) const;
  void send_reports();
  void choose_neighbours();
  void lose(std::size_t rank, Standing how, double since);
  void report_to_all();
  bool leaves(const Peer& peer) const;
  bool agreed() const;
  bool agrees(const Peer& peer) const;
  bool held_up() const;
  bool may_go_on() const;
  std::vector<std::byte> report() const;
  std::size_t left() const;
  bool on_this_node(std::size_t rank) const { return peers_[rank].node == peers_[own_].node; }

  World& world_;
  const Channel channel_;
  const double lost_after_;
  const std::size_t own_;     // this rank
  std::vector<Loss> losses_;  // only used by the thread that calls agree()
  std::mutex mutex_;          // guards what follows
  std::condition_variable changed_;
  std::vector<Peer> peers_;   // all ranks of the job
  std::vector<int> members_;  // ranks of the world
  bool disturbed_ = false;    // a member was lost
  bool leaving_ = false, failed_ = false;
  bool waiting_ = false;            // in agree()
  std::uint64_t section_ = 0;       // agree()'s argument
  double looked_ = 0, beaten_ = 0;  // when it last looked, and sent a heartbeat
  std::vector<pollfd> processes_;
  std::jthread thread_;  // last, because it uses all members above
};

}  // namespace annulus
