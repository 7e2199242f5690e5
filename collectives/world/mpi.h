#pragma once

#include <mpi.h>

#include <cstddef>
#include <source_location>
#include <span>

namespace annulus {

// Throws Error with MPI's own text if an MPI call failed. Works because errors are returned on every communicator that
// this program uses (MPI's default is to end the process).
void check(int mpi_result, std::source_location place = std::source_location::current());

// Converts a size to MPI's int counts; throws Error if it does not fit.
int mpi_count(std::size_t count);

// Initializes and finalizes MPI in this process, unless the program has initialized it, with MPI_THREAD_MULTIPLE: the
// ring's worker thread calls MPI while the main thread does.
class MpiSession {
 public:
  MpiSession();  // throws Error if MPI lacks MPI_THREAD_MULTIPLE, or has been finalized
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  void leave_open() { initialized_here_ = false; }  // the destructor does nothing: ranks may be lost

  // Sets the status of this process if MPI crashes while it is finalized. Only for a process that no launcher started:
  // Open MPI 4.1's progress thread may then call a plug-in that has been unloaded (1 in 750 on a busy machine).
  static void set_status_after_crash(int status);

 private:
  bool initialized_here_ = false;
};

// Owns a communicator.
class Communicator {
 public:
  Communicator() = default;
  // Both are collective over `original` and keep the rank order.
  static Communicator duplicate(MPI_Comm original);
  static Communicator on_this_node(MPI_Comm original);  // the ranks that share this node's memory
  // The ranks with these numbers in `original`, in this order; collective over them. `tag`: for the exchange.
  static Communicator of(MPI_Comm original, std::span<const int> ranks, int tag);
  Communicator(Communicator&& other) noexcept;
  Communicator& operator=(Communicator&& other) noexcept;
  ~Communicator();

  MPI_Comm handle() const { return handle_; }
  int rank() const;
  int size() const;

 private:
  MPI_Comm handle_ = MPI_COMM_NULL;
};

}  // namespace annulus
