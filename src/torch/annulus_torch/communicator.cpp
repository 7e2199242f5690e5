#include "src/torch/annulus_torch/communicator.h"

#include <cstdlib>
#include <mutex>
#include <stdexcept>

namespace annulus {

void check_mpi(int result) {
  if (result == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(result, text, &length);
  throw std::runtime_error("annulus: MPI: " + std::string(text, static_cast<std::size_t>(length)));
}

namespace {

bool initialized_here = false;

void initialize() {
  static std::once_flag once;
  std::call_once(once, [] {
    int initialized = 0, provided = MPI_THREAD_MULTIPLE;
    MPI_Initialized(&initialized);
    // Otherwise Open MPI polls its sockets only in every 10,000th call that finds nothing to do, and MpiRequests, which
    // sleeps between calls, would take minutes for a large message.
    setenv("OMPI_MCA_mpi_event_tick_rate", "1", 0);
    if (initialized != 0)
      MPI_Query_thread(&provided);
    else if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided) != MPI_SUCCESS)
      throw std::runtime_error("annulus: MPI cannot be initialized");
    if (provided < MPI_THREAD_MULTIPLE)
      throw std::runtime_error("annulus: MPI was initialized without MPI_THREAD_MULTIPLE, which is required");
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    initialized_here = initialized == 0;
  });
}

Place place_in(MPI_Comm communicator) {
  Place found{};
  check_mpi(MPI_Comm_rank(communicator, &found.first));
  check_mpi(MPI_Comm_size(communicator, &found.second));
  return found;
}

Place place_on_node(MPI_Comm communicator) {
  MPI_Comm node;
  check_mpi(MPI_Comm_split_type(communicator, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node));
  const Place found = place_in(node);
  check_mpi(MPI_Comm_free(&node));
  return found;
}

}  // namespace

Place in_job() {
  initialize();
  return place_in(MPI_COMM_WORLD);
}

Place on_node() {
  initialize();
  return place_on_node(MPI_COMM_WORLD);
}

std::string broadcast_text(const std::string& text) {
  initialize();
  int bytes = static_cast<int>(text.size());
  check_mpi(MPI_Bcast(&bytes, 1, MPI_INT, 0, MPI_COMM_WORLD));
  std::string found = text;
  found.resize(static_cast<std::size_t>(bytes));
  check_mpi(MPI_Bcast(found.data(), bytes, MPI_BYTE, 0, MPI_COMM_WORLD));
  return found;
}

void finalize() {
  int finalized = 0;
  if (initialized_here && MPI_Finalized(&finalized) == MPI_SUCCESS && finalized == 0) MPI_Finalize();
}

Communicator Communicator::of(const std::vector<int>& ranks) {
  MPI_Group all, part;
  Communicator found;
  check_mpi(MPI_Comm_group(MPI_COMM_WORLD, &all));
  check_mpi(MPI_Group_incl(all, static_cast<int>(ranks.size()), ranks.data(), &part));
  check_mpi(MPI_Comm_create_group(MPI_COMM_WORLD, part, 0, &found.handle_));
  check_mpi(MPI_Group_free(&part));
  check_mpi(MPI_Group_free(&all));
  return found;
}

Communicator Communicator::duplicate() const {
  Communicator found;
  check_mpi(MPI_Comm_dup(handle_, &found.handle_));
  return found;
}

bool Communicator::one_node() const {
  return place_on_node(handle_).second == place_in(handle_).second;
}

}  // namespace annulus
