#pragma once

#include <mpi.h>

#include <string>
#include <utility>
#include <vector>

namespace annulus {

// Throws std::runtime_error with MPI's text if a call failed.
void check_mpi(int result);

// Where the launcher placed this process. Each initializes MPI if nobody has.
using Place = std::pair<int, int>;  // rank and size
Place in_job();
Place on_node();  // collective over all ranks of the job

std::string broadcast_text(const std::string& text);  // rank 0's, over all ranks of the job; collective

void finalize();  // MPI, if this file initialized it; waits for the other ranks

// Owns a communicator. It is not freed: that is collective, and processes end in any order.
class Communicator {
 public:
  Communicator() = default;
  static Communicator of(const std::vector<int>& ranks);  // of the job, in this order; collective over them
  Communicator duplicate() const;                         // collective

  bool one_node() const;  // whether all ranks share memory; collective

  MPI_Comm handle() const { return handle_; }

 private:
  MPI_Comm handle_ = MPI_COMM_NULL;
};

}  // namespace annulus
