#include "collectives/library/node_carrier.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/error.h"

namespace annulus {
namespace {

constexpr std::string_view kRemedy = "start the program with mpirun or srun --mpi=pmix, one process for each rank";

// The first bytes that a rank passes to all ranks.
struct Introduction {
  std::array<char, 64> host{};
  std::array<char, 40> boot{};  // identifies the running kernel, also in containers
  pid_t process = getpid();
  int file = -1;  // rank 0's descriptor for the memory
  std::uint64_t token = 0;
};

Introduction introduce() {
  Introduction own;
  gethostname(own.host.data(), own.host.size() - 1);
  std::ifstream("/proc/sys/kernel/random/boot_id").read(own.boot.data(), own.boot.size() - 1);
  return own;
}

template <class T>
std::vector<T> gather_all(const Exchange& exchange, const T& own, int size) {
  std::vector<T> all(static_cast<std::size_t>(size));
  exchange(std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(all)));
  return all;
}

// Throws Error on all ranks if a rank is on another node than rank 0.
void expect_one_node(std::span<const Introduction> ranks) {
  for (std::size_t rank = 1; rank < ranks.size(); ++rank)
    if (ranks[rank].boot != ranks[0].boot)
      fail(
          "ranks 0 and {} are on different nodes, {} and {}, and MPI, which sends messages between nodes, did not "
          "start them: {}",
          rank, ranks[0].host.data(), ranks[rank].host.data(), kRemedy);
}

// Rank 0's memory. It has no name, so it ends with the processes.
int create_memory(std::size_t bytes, std::uint64_t token) {
  const int file = memfd_create("annulus", MFD_CLOEXEC);
  if (file >= 0 && ftruncate(file, static_cast<off_t>(bytes + sizeof(token))) == 0 &&
      pwrite(file, &token, sizeof(token), static_cast<off_t>(bytes)) == sizeof(token))
    return file;
  const int error = errno;
  if (file >= 0) close(file);
  errno = error;
  return -1;
}

// Opens rank 0's memory. The token shows that it is: with other process numbers, as in another container, it is not.
int open_memory(const Introduction& first, std::size_t bytes) {
  const int file = open(fmt::format("/proc/{}/fd/{}", first.process, first.file).c_str(), O_RDWR | O_CLOEXEC);
  std::uint64_t token = 0;
  if (file < 0 ||
      (pread(file, &token, sizeof(token), static_cast<off_t>(bytes)) == sizeof(token) && token == first.token))
    return file;
  close(file);
  errno = ENOENT;
  return -1;
}

}  // namespace

NodeCarrier::NodeCarrier(int rank, int size, const Exchange& exchange)
    : Carrier(rank, size), backoff_(0, {std::shared_ptr<void>(), &interruption.interrupted()}) {
  const auto ranks = static_cast<std::size_t>(size);
  const std::size_t bytes = ranks * ranks * sizeof(Pipe);
  Introduction own = introduce();
  if (rank == 0) {
    std::random_device random;
    own.token = std::uint64_t{random()} << 32 | random();
    own.file = create_memory(bytes, own.token);
  }
  int error = rank == 0 && own.file < 0 ? errno : 0, file = own.file;
  void* memory = MAP_FAILED;
  try {
    const std::vector<Introduction> all = gather_all(exchange, own, size);
    expect_one_node(all);
    if (rank != 0) file = open_memory(all[0], bytes);
    if (file >= 0) memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED && error == 0) error = errno;
    const std::vector<int> errors = gather_all(exchange, error, size);
    const auto failed = std::ranges::find_if(errors, [](int each) { return each != 0; });
    if (failed != errors.end())
      fail("rank {} on {} cannot share memory with rank 0: {}; {}", failed - errors.begin(),
           all[static_cast<std::size_t>(failed - errors.begin())].host.data(), std::strerror(*failed), kRemedy);
  } catch (...) {
    if (memory != MAP_FAILED) munmap(memory, bytes);
    if (file >= 0) close(file);
    throw;
  }
  close(file);
  pipes_ = static_cast<Pipe*>(memory);  // zeros, as new pipes
  mapped_bytes_ = bytes;
}

NodeCarrier::~NodeCarrier() {
  munmap(pipes_, mapped_bytes_);
}

void NodeCarrier::write(std::span<const std::byte> bytes, Pipe& pipe) const {
  while (!bytes.empty()) {
    const std::uint32_t end = pipe.written.value();
    pipe.read.await(end + 1 - Pipe::kBytes, backoff_);
    const std::uint32_t at = end % Pipe::kBytes, room = Pipe::kBytes - (end - pipe.read.value());
    const auto count = std::min<std::size_t>({bytes.size(), room, Pipe::kBytes - at});
    std::memcpy(pipe.bytes + at, bytes.data(), count);
    pipe.written.raise(end + static_cast<std::uint32_t>(count));
    bytes = bytes.subspan(count);
  }
}

void NodeCarrier::read(std::span<std::byte> bytes, Pipe& pipe) const {
  while (!bytes.empty()) {
    const std::uint32_t begin = pipe.read.value();
    pipe.written.await(begin + 1, backoff_);
    const std::uint32_t at = begin % Pipe::kBytes, there = pipe.written.value() - begin;
    const auto count = std::min<std::size_t>({bytes.size(), there, Pipe::kBytes - at});
    std::memcpy(bytes.data(), pipe.bytes + at, count);
    pipe.read.raise(begin + static_cast<std::uint32_t>(count));
    bytes = bytes.subspan(count);
  }
}

void NodeCarrier::start_sending(std::span<const std::byte> bytes, int to, int context, MPI_Request& request) const {
  const Header header{context, static_cast<std::uint32_t>(bytes.size())};
  write(std::as_bytes(std::span(&header, 1)), pipe(rank(), to));
  write(bytes, pipe(rank(), to));
  request = MPI_REQUEST_NULL;
}

void NodeCarrier::start_receiving(std::span<std::byte> bytes, int from, int context, MPI_Request& request) const {
  Header header{};
  read(std::as_writable_bytes(std::span(&header, 1)), pipe(from, rank()));
  if (header.context != context || header.bytes != bytes.size())
    fail("rank {} sent {} bytes in channel {}, but rank {} expects {} bytes in channel {}", from, header.bytes,
         header.context, rank(), bytes.size(), context);
  read(bytes, pipe(from, rank()));
  request = MPI_REQUEST_NULL;
}

int NodeCarrier::largest_context() const {
  return std::numeric_limits<int>::max();
}

Communicator NodeCarrier::communicator_of(std::span<const int>, int) const {
  fail("MPI did not start the ranks: {}", kRemedy);
}

}  // namespace annulus
