#pragma once

#include <mpi.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <list>
#include <mutex>
#include <string>
#include <thread>

#include "src/torch/annulus_torch/communicator.h"

namespace annulus {

// Completes MPI's requests in any order, on a separate thread. Thread-safe.
//
// A completed request may still have data in MPI's queues, which other ranks wait for, and MPI sends these only within
// calls. So the thread also calls MPI while there is nothing to do, if there are several nodes.
class MpiRequests {
 public:
  using Clock = std::chrono::steady_clock;
  // Called once per request on the thread: `error` is empty if the request is complete.
  using Done = std::function<void(const std::string& error, const MPI_Status& status)>;

  explicit MpiRequests(const Communicator& communicator);
  ~MpiRequests();  // fails the requests that are pending

  // Calls `start`, which starts a request, and `done` later. Requests of collectives start in the order of these calls.
  void add(const std::function<void(MPI_Request&)>& start, Clock::time_point deadline, Done done);

  void fail_all(const std::string& error);  // of the pending requests; MPI may still use their memory

 private:
  struct Pending {
    MPI_Request request;
    Clock::time_point deadline;
    Done done;
  };

  void work();
  bool progress();  // whether a request ended

  const MPI_Comm communicator_;
  const bool several_nodes_;
  std::mutex mutex_;  // guards what follows, and is held during MPI's calls
  std::condition_variable added_;
  std::list<Pending> pending_;
  std::string failure_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace annulus
