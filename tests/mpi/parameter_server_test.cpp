#include "collectives/parameter_server.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <future>
#include <thread>

#include "kernels/base/error.h"

using namespace annulus;

namespace {

constexpr std::size_t kCount = 5003;

// The chunk of a rank, in two ranges; if not all serve, the last rank has all.
std::vector<Range> chunk(std::size_t ranks, std::size_t rank, bool all_serve) {
  const auto part = [&](std::size_t count) {
    return all_serve ? split(count, ranks, rank) : rank + 1 == ranks ? Range{0, count} : Range{};
  };
  const Range first = part(2000), second = part(kCount - 2000);
  return {first, {2000 + second.begin, 2000 + second.end}};
}

// A rank's contribution to a step is this everywhere.
float value(std::size_t rank, std::uint64_t step) {
  return static_cast<float>(100 * step + rank);
}

bool all_are(std::span<const float> values, float expected) {
  return std::ranges::all_of(values, [expected](float one) { return one == expected; });
}

std::vector<Range> own_chunk(const World& world, bool all_serve) {
  return chunk(static_cast<std::size_t>(world.size()), static_cast<std::size_t>(world.rank()), all_serve);
}

void pause(std::uint64_t number) {
  std::this_thread::sleep_for(std::chrono::microseconds(number * 7919 % 300));
}

}  // namespace

TEST_CASE("owners read each contribution once, and workers pull weights of at most `staleness` steps ago") {
  const World world(GENERATE(0, 1, 2));
  const std::size_t staleness = GENERATE(0, 1, 4);
  const bool all_serve = GENERATE(true, false);
  constexpr std::uint64_t kSteps = 200;
  CAPTURE(world.one_node(), staleness, all_serve);
  const auto server = make_parameter_server(world, own_chunk(world, all_serve), kCount, staleness + 2);
  const std::size_t own = server->rank(), ranks = server->ranks();

  std::size_t wrong = 0;  // by the owner
  const auto serve = [&] {
    std::vector<float> weights(kCount);  // the step's number
    server->publish(0, weights);
    for (std::uint64_t step = 1; step <= kSteps; ++step) {
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        if (rank == 1 && step % 2 == 0) continue;  // it contributes to every second step
        const auto contribution = server->await_contribution(rank);
        for (const Range& range : server->own())
          if (!all_are(contribution.subspan(range.begin, range.size()), value(rank, step))) ++wrong;
      }
      pause(step + own);
      std::ranges::fill(weights, static_cast<float>(step));
      server->publish(step, weights);
    }
    server->serve(kSteps);
  };
  std::future<void> owner;
  if (all_serve || own + 1 == ranks) owner = std::async(std::launch::async, serve);

  std::vector<float> weights(kCount);
  std::size_t torn = 0;
  for (std::uint64_t step = 1; step <= kSteps; ++step) {
    if (own == 1 && step % 2 == 0) continue;
    const std::uint64_t needed = step - 1 - std::min<std::uint64_t>(step - 1, staleness);
    server->await_steps(needed);
    const std::uint64_t pulled = server->pull(weights);
    CHECK(pulled >= needed);
    CHECK(pulled < step);
    CHECK(*std::ranges::min_element(weights) == static_cast<float>(pulled));
    for (std::size_t rank = 0; rank < ranks; ++rank)
      for (const Range& range : chunk(ranks, rank, all_serve))
        if (!all_are(std::span(weights).subspan(range.begin, range.size()), weights[range.begin])) ++torn;
    if (own == 0) pause(step);
    std::ranges::fill(server->contribution(), value(own, step));
    server->contribute();
  }
  server->await_steps(kSteps);
  CHECK(server->pull(weights) == kSteps);
  if (owner.valid()) owner.get();
  CHECK(all_are(weights, static_cast<float>(kSteps)));
  CHECK(wrong == 0);
  CHECK(torn == 0);
  world.barrier();
}

TEST_CASE("in a round, owners go on without a lost worker") {
  const World everyone(GENERATE(0, 1));
  if (everyone.size() < 3) return;
  World world = everyone;
  auto server = make_parameter_server(world, own_chunk(world, false), kCount, 1);
  std::vector<float> weights(kCount);
  if (world.rank() == 0) {  // it contributes to the first of two steps
    std::ranges::fill(server->contribution(), 1.0f);
    server->contribute();
  } else {
    const std::size_t ranks = server->ranks();
    world.begin_section(1, world.size() - 1);
    bool first = false, second = true;
    std::future<void> owner;
    if (server->rank() + 1 == ranks)
      owner = std::async(std::launch::async, [&] {
        server->publish(0, weights);
        first = all_are(server->await_contribution(0), 1.0f);
        world.lose(0);
        for (std::uint64_t step = 1; step <= 2; ++step) {
          if (step == 2) second = !server->await_contribution(0).empty();
          for (std::size_t rank = 1; rank < ranks; ++rank)
            if (!all_are(server->await_contribution(rank), value(rank, step))) first = false;
          server->publish(step, std::vector(kCount, static_cast<float>(step)));
        }
        server->serve(2);
      });
    else
      world.lose(0);
    for (std::uint64_t step = 1; step <= 2; ++step) {
      server->await_steps(step - 1);
      CHECK(server->pull(weights) == step - 1);
      std::ranges::fill(server->contribution(), value(server->rank(), step));
      server->contribute();
    }
    server->await_steps(2);
    CHECK(server->pull(weights) == 2);
    CHECK(all_are(weights, 2));
    if (owner.valid()) {
      owner.get();
      CHECK(first);
      CHECK_FALSE(second);
    }
    CHECK_FALSE(world.interrupted());
    world.end_section();
    CHECK(world.interrupted());
    std::vector<int> left;
    for (int rank = 1; rank < everyone.size(); ++rank) left.push_back(rank);
    world.continue_with(left, 1);
    CHECK_FALSE(world.interrupted());
    world.barrier();
    server->withdraw();
    world.barrier();
  }
  everyone.barrier();
}

TEST_CASE("when ranks were lost, the others withdraw from what is in flight, and make another one") {
  const World everyone(GENERATE(0, 1));
  if (everyone.size() == 1) return;
  World world = everyone;
  auto server = make_parameter_server(world, own_chunk(world, true), kCount, 1);
  server->contribute();  // nobody receives it
  if (everyone.rank() > 0) {
    world.interrupt(true);
    CHECK_THROWS_AS(server->await_steps(1), Error);
    std::vector<int> left;
    for (int rank = 1; rank < everyone.size(); ++rank) left.push_back(rank);
    world.continue_with(left, 1);
    world.interrupt(false);
    server->withdraw();
    server = make_parameter_server(world, own_chunk(world, true), kCount, 1);

    std::vector<float> weights(kCount);
    std::future<void> owner = std::async(std::launch::async, [&server] {
      std::vector<float> sum(kCount);
      server->publish(0, sum);
      for (std::size_t rank = 0; rank < server->ranks(); ++rank) {
        const auto contribution = server->await_contribution(rank);
        for (const Range& range : server->own())
          for (std::size_t i = range.begin; i < range.end; ++i) sum[i] += contribution[i];
      }
      server->publish(1, sum);
      server->serve(1);
    });
    server->await_steps(0);
    server->pull(weights);
    std::ranges::fill(server->contribution(), 3.0f);
    server->contribute();
    server->await_steps(1);
    CHECK(server->pull(weights) == 1);
    owner.get();
    CHECK(all_are(weights, 3.0f * static_cast<float>(left.size())));
    world.barrier();
  }
  everyone.barrier();
}

TEST_CASE("an abandoned owner does not wait") {
  const World world(GENERATE(0, 1));
  const auto server = make_parameter_server(world, own_chunk(world, true), kCount, 1);
  server->abandon();
  CHECK_THROWS_WITH(server->await_contribution(server->rank()), Catch::Contains("abandoned"));
  world.barrier();
}
