#include "collectives/world/world.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <thread>

#include "collectives/world/backoff.h"
#include "collectives/world/shared_memory.h"
#include "kernels/base/error.h"
#include "src/io/file_descriptor.h"
#include "src/job/launched_rank.h"

using namespace annulus;

TEST_CASE("ranks in the world and on the node") {
  const World world;
  const std::vector<std::uint64_t> ranks = world.gather(static_cast<std::uint64_t>(world.rank()));
  REQUIRE(ranks.size() == static_cast<std::size_t>(world.size()));
  for (std::size_t i = 0; i < ranks.size(); ++i) CHECK(ranks[i] == i);
  CHECK(world.root() == (world.rank() == 0));
  CHECK(world.local_size() >= 1);
  CHECK(world.local_size() <= world.size());
  CHECK(world.local_rank() < world.local_size());
  if (launched_rank()) CHECK(launched_local_rank() == world.local_rank());
}

TEST_CASE("broadcast reaches every rank") {
  const World world;
  std::vector<std::byte> bytes(1001, std::byte(world.root() ? 42 : 0));
  world.broadcast(bytes);
  CHECK(bytes == std::vector<std::byte>(1001, std::byte{42}));
  world.broadcast({});
}

TEST_CASE("sum and maximum over all ranks") {
  const World world;
  const int n = world.size();
  std::array<std::int64_t, 2> counts = {world.rank(), std::int64_t{1} << 40};
  world.sum(counts);
  CHECK(counts[0] == n * (n - 1) / 2);
  CHECK(counts[1] == (std::int64_t{1} << 40) * n);
  std::array<double, 2> largest = {static_cast<double>(world.rank()), -1.0 - world.rank()};
  world.maximum(largest);
  CHECK(largest[0] == n - 1);
  CHECK(largest[1] == -1);
  std::array<double, 2> smallest = {static_cast<double>(world.rank()), -1.0 - world.rank()};
  world.minimum(smallest);
  CHECK(smallest[0] == 0);
  CHECK(smallest[1] == -n);
}

TEST_CASE("gather returns numbers and texts in rank order") {
  const World world;
  const int n = world.size();
  const std::array<double, 2> mine = {static_cast<double>(world.rank()), 0.5};
  const std::vector<double> all = world.gather(mine);
  REQUIRE(all.size() == 2 * static_cast<std::size_t>(n));
  for (int rank = 0; rank < n; ++rank) {
    CHECK(all[2 * static_cast<std::size_t>(rank)] == rank);
    CHECK(all[2 * static_cast<std::size_t>(rank) + 1] == 0.5);
  }

  const auto text_of = [](int rank) { return std::string(static_cast<std::size_t>(rank % 3) * 100'000, 'a'); };
  const std::vector<std::string> texts = world.gather_texts(text_of(world.rank()));
  REQUIRE(texts.size() == (world.root() ? static_cast<std::size_t>(n) : 0));
  for (std::size_t rank = 0; rank < texts.size(); ++rank) CHECK(texts[rank] == text_of(static_cast<int>(rank)));
}

TEST_CASE("sums of doubles are bit-identical on all ranks") {
  const World world;
  std::vector<double> values(100);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = std::sin(static_cast<double>(i + 1000 * static_cast<std::size_t>(world.rank()))) / 3;
  world.sum(values);
  for (const double value : values) CHECK(world.gather(value) == std::vector(world.gather(value).size(), value));
}

TEST_CASE("a world continues with the ranks that are left") {
  const int ranks_per_node = GENERATE(0, 2);
  const World everyone(ranks_per_node);
  if (everyone.size() == 1) return;
  World world = everyone;
  for (int losses = 1; losses < everyone.size(); ++losses) {
    const int lost = losses % 2 == 0 ? losses : world.rank_in_job(0);  // the first of the world, or one in the middle
    std::vector<int> left;
    for (int rank = 0; rank < world.size(); ++rank)
      if (world.rank_in_job(rank) != lost) left.push_back(world.rank_in_job(rank));
    if (left.size() == static_cast<std::size_t>(world.size()) || everyone.rank() == lost) break;
    world.continue_with(left, losses);
    REQUIRE(world.size() == static_cast<int>(left.size()));
    CHECK(world.rank_in_job(world.rank()) == everyone.rank());
    const std::vector<std::uint64_t> ranks = world.gather(static_cast<std::uint64_t>(everyone.rank()));
    CHECK(std::ranges::equal(ranks, left, std::equal_to(), [](std::uint64_t rank) { return static_cast<int>(rank); }));
    const World node = world.node();
    CHECK(node.size() == world.local_size());
    std::array<std::int64_t, 1> ones{1};
    node.sum(ones);
    CHECK(ones[0] == node.size());
    for (int rank = 0; rank < node.size(); ++rank) {
      const int job_rank = node.rank_in_job(rank);
      CHECK(everyone.node_of(job_rank) == everyone.node_of(everyone.rank()));
    }
    std::byte number{};
    const Channel channel = world.channel();
    if (world.root() && world.size() > 1) channel.send(std::array{std::byte{42}}, world.size() - 1);
    if (world.rank() == world.size() - 1 && !world.root()) {
      channel.receive({&number, 1}, 0);
      CHECK(number == std::byte{42});
    }
    world.barrier();
  }
  everyone.barrier();
}

TEST_CASE("an interruption ends all waits for other ranks, until it is over") {
  const World world;
  const Channel channel = world.channel();
  const World node = world.node();
  std::jthread thread([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    world.interrupt(true);
  });
  std::byte never_sent{};
  CHECK_THROWS_WITH(channel.receive({&never_sent, 1}, world.rank()), "a rank was lost");
  CHECK(world.interrupted());
  Backoff backoff(0, world.interruption());
  CHECK_THROWS_WITH(backoff.pause(0), Catch::Contains("abandoned"));
  thread.join();
  world.interrupt(false);
  backoff.pause(0);
  node.barrier();
  channel.send(std::array{std::byte{7}}, world.rank());  // the receive above was withdrawn: this one gets the message
  std::byte sent{};
  channel.receive({&sent, 1}, world.rank());
  CHECK(sent == std::byte{7});
  world.barrier();
}

TEST_CASE("MPI errors are thrown with their message and location") {
  const World world;
  const Communicator communicator = world.communicator();
  CHECK_THROWS_WITH(check(MPI_Send(nullptr, 0, MPI_BYTE, world.size(), 0, communicator.handle())),
                    Catch::Contains("world_test.cpp") && Catch::Contains("rank"));
}

TEST_CASE("one thread gives receives up while another one's messages arrive") {
  const World world;
  const Channel ring = world.channel(), silent = world.channel();
  const int next = (world.rank() + 1) % world.size(), previous = (world.rank() + world.size() - 1) % world.size();
  std::atomic<bool> ended = false, left_over = false;
  std::jthread other([&] {
    std::array<std::byte, 100> landing{};
    while (!ended) {
      std::array<MPI_Request, 2> receives{MPI_REQUEST_NULL, MPI_REQUEST_NULL};
      for (MPI_Request& receive : receives) silent.start_receiving(landing, previous, receive);
      silent.withdraw({&receives[0], 1});
      silent.give_up({&receives[1], 1});
      if (receives != std::array<MPI_Request, 2>{MPI_REQUEST_NULL, MPI_REQUEST_NULL}) left_over = true;
    }
  });
  for (int turn = 0; turn < 300; ++turn) {
    int sent = turn, received = -1;
    std::array<MPI_Request, 1> receive{MPI_REQUEST_NULL}, send{MPI_REQUEST_NULL};
    ring.start_receiving(std::as_writable_bytes(std::span(&received, 1)), previous, receive[0]);
    ring.start_sending(std::as_bytes(std::span(&sent, 1)), next, send[0]);
    ring.complete(receive, send);
    REQUIRE(received == turn);
  }
  ended = true;
  other.join();
  CHECK(!left_over);
}

TEST_CASE("a count that MPI cannot express is refused") {
  CHECK(mpi_count(2147483647) == 2147483647);
  CHECK_THROWS_AS(mpi_count(2147483648), Error);
}

TEST_CASE("files that killed ranks left are removed, but not those in use or of others") {
  const World world;
  if (world.size() == 1) return;  // it creates no file
  SharedMemory memory(world.node());
  if (!world.root()) return static_cast<void>(memory.allocate(100));
  const auto create = [](const std::string& name, bool old) {
    const FileDescriptor file(shm_open(name.c_str(), O_CREAT | O_RDWR, 0600));
    const timespec long_ago[2] = {{1000, 0}, {1000, 0}};
    if (old) futimens(file.number(), long_ago);
  };
  const std::string left = "/annulus-1-1-1", locked = "/annulus-1-2-1", young = "/annulus-1-3-1", other = "/annulu-1";
  for (const std::string& name : {left, locked, other}) create(name, true);
  create(young, false);
  const FileDescriptor holder(shm_open(locked.c_str(), O_RDWR, 0));
  REQUIRE(flock(holder.number(), LOCK_EX) == 0);
  memory.allocate(100);
  const auto exists = [](const std::string& name) { return std::filesystem::exists("/dev/shm" + name); };
  CHECK_FALSE(exists(left));
  for (const std::string& name : {locked, young, other}) {
    CHECK(exists(name));
    shm_unlink(name.c_str());
  }
}

TEST_CASE("shared memory is allocated although a killed process of the same number left files") {
  const World world;
  const auto name_of = [](int number) { return fmt::format("/annulus-{}-{}", getpid(), number); };
  for (int number = 0; number < 1000; ++number) close(shm_open(name_of(number).c_str(), O_CREAT | O_RDWR, 0600));
  SharedMemory memory(world.node());
  CHECK(memory.allocate(100).size() == 100);
  for (int number = 0; number < 1000; ++number) shm_unlink(name_of(number).c_str());
}

TEST_CASE("freed memory is reused zeroed, after all ranks have freed it") {
  const World world;
  SharedMemory memory(world.node());
  const auto first = memory.allocate(10'000), kept = memory.allocate(10'000);
  std::ranges::fill(first, std::byte{7});
  CHECK_FALSE(memory.free(first.data() + 1));
  if (world.root() || world.size() == 1) CHECK(memory.free(first.data()));
  const auto second = memory.allocate(9'000);
  CHECK((second.data() == first.data()) == (world.size() == 1));
  if (world.size() > 1 && !world.root()) CHECK(memory.free(first.data()));
  if (world.size() == 1) CHECK(memory.free(first.data()));
  CHECK_FALSE(memory.free(first.data()));
  CHECK(memory.allocate(100'000).data() != first.data());
  CHECK(memory.allocate(100).data() != first.data());  // it is much too large
  const auto third = memory.allocate(9'000);
  CHECK(third.data() == first.data());
  CHECK(std::ranges::count(third, std::byte{0}) == 9'000);
  CHECK(memory.everywhere(third).size() == static_cast<std::size_t>(world.size()));
}

TEST_CASE("allocations of different sizes are refused on all ranks, with both sizes") {
  const World world;
  if (world.size() == 1) return;
  SharedMemory memory(world.node());
  CHECK_THROWS_WITH(memory.allocate(world.root() ? 100 : 200),
                    "ranks 0 and 1 allocate 100 and 200 bytes of shared memory together");
  CHECK(memory.allocate(100).size() == 100);
}

TEST_CASE("a world may consist of any communicator's ranks") {
  const World everyone;
  MPI_Comm half = MPI_COMM_NULL;
  check(MPI_Comm_split(MPI_COMM_WORLD, everyone.rank() % 2, -everyone.rank(), &half));
  const World world(0, half);
  MPI_Comm_free(&half);
  CHECK(world.size() == (everyone.size() + 1 - everyone.rank() % 2) / 2);
  const std::vector<std::uint64_t> ranks = world.gather(static_cast<std::uint64_t>(everyone.rank()));
  CHECK(std::ranges::is_sorted(ranks, std::greater<>()));
  CHECK(ranks[static_cast<std::size_t>(world.rank())] == static_cast<std::uint64_t>(everyone.rank()));
  CHECK(world.local_size() == world.size());
}

TEST_CASE("a session in a program that has initialized MPI leaves MPI initialized") {
  { const MpiSession session; }
  int finalized = 1;
  check(MPI_Finalized(&finalized));
  CHECK(finalized == 0);
  World().barrier();
}
