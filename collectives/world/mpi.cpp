#include "collectives/world/mpi.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <limits>
#include <utility>

#include "collectives/world/mpi_failure.h"
#include "kernels/base/error.h"

namespace annulus {
namespace {

std::atomic<bool> has_failed = false;
volatile std::sig_atomic_t status_after_crash = 0;

}  // namespace

bool mpi_has_failed() {
  return has_failed;
}

void check(int mpi_result, std::source_location place) {
  if (mpi_result == MPI_SUCCESS) return;
  has_failed = true;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(mpi_result, text.data(), &length);
  fail("MPI failed in {} ({}:{}): {}", place.function_name(), place.file_name(), place.line(),
       std::string_view(text.data(), static_cast<std::size_t>(length)));
}

int mpi_count(std::size_t count) {
  if (count > static_cast<std::size_t>(std::numeric_limits<int>::max()))
    fail("{} elements exceed the limit of one MPI call, {}; send them in parts", count,
         std::numeric_limits<int>::max());
  return static_cast<int>(count);
}

MpiSession::MpiSession() {
  int provided = MPI_THREAD_SINGLE, before = 0, finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized != 0) fail("MPI has been finalized in this process, and cannot be initialized again");
  MPI_Initialized(&before);
  initialized_here_ = before == 0;
  if (initialized_here_) {
    // With poll(), the default, Open MPI 4 adds a dead rank's closed socket after a send, and after the next one a new
    // socket of the same number: the list of sockets becomes a ring, and a later MPI call never returns.
    setenv("OMPI_MCA_opal_event_include", "epoll", 0);
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided));
    check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
  } else {
    check(MPI_Query_thread(&provided));
  }
  if (provided < MPI_THREAD_MULTIPLE)
    fail("{} MPI_THREAD_MULTIPLE, which overlapping gradients with backward needs; {}",
         initialized_here_ ? "this MPI library does not support" : "this program initialized MPI without",
         initialized_here_ ? "use an MPI library that is built with thread support" : "request it in MPI_Init_thread");
}

// While an exception propagates, other ranks may wait for messages that never come, and MPI_Finalize would wait for
// them: main's MPI_Abort ends the job then.
MpiSession::~MpiSession() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (initialized_here_ && finalized == 0 && std::uncaught_exceptions() == 0) MPI_Finalize();
}

void MpiSession::set_status_after_crash(int status) {
  status_after_crash = status;
  std::signal(SIGSEGV, [](int) { _exit(status_after_crash); });
}

Communicator Communicator::duplicate(MPI_Comm original) {
  Communicator result;
  check(MPI_Comm_dup(original, &result.handle_));
  check(MPI_Comm_set_errhandler(result.handle_, MPI_ERRORS_RETURN));
  return result;
}

Communicator Communicator::on_this_node(MPI_Comm original) {
  Communicator result;
  check(MPI_Comm_split_type(original, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &result.handle_));
  check(MPI_Comm_set_errhandler(result.handle_, MPI_ERRORS_RETURN));
  return result;
}

Communicator Communicator::of(MPI_Comm original, std::span<const int> ranks, int tag) {
  Communicator result;
  MPI_Group all = MPI_GROUP_NULL, some = MPI_GROUP_NULL;
  check(MPI_Comm_group(original, &all));
  check(MPI_Group_incl(all, static_cast<int>(ranks.size()), ranks.data(), &some));
  check(MPI_Comm_create_group(original, some, tag, &result.handle_));
  MPI_Group_free(&all);
  MPI_Group_free(&some);
  check(MPI_Comm_set_errhandler(result.handle_, MPI_ERRORS_RETURN));
  return result;
}

int Communicator::rank() const {
  int rank = 0;
  check(MPI_Comm_rank(handle_, &rank));
  return rank;
}

int Communicator::size() const {
  int size = 0;
  check(MPI_Comm_size(handle_, &size));
  return size;
}

Communicator::Communicator(Communicator&& other) noexcept : handle_(std::exchange(other.handle_, MPI_COMM_NULL)) {}

Communicator& Communicator::operator=(Communicator&& other) noexcept {
  std::swap(handle_, other.handle_);
  return *this;
}

// Freeing is collective, so it is skipped if the other ranks may not take part; see ~MpiSession.
Communicator::~Communicator() {
  if (handle_ != MPI_COMM_NULL && std::uncaught_exceptions() == 0) MPI_Comm_free(&handle_);
}

}  // namespace annulus
